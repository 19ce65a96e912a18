"""What was learnt, on disk, and back: no pickle, no code, whole or not at all.

docs/architecture.md draws the checkpoint folder. A kill at any moment leaves the manifest of the last complete
checkpoint and its files. `take_snapshot` belongs to the training thread; `Snapshot.write` to any.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import logging
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from tmrl_like.base.checked import checked_json
from tmrl_like.base.files import disk, remove_drafts, write_atomically
from tmrl_like.base.text import one_line
from tmrl_like.base.tree import map_leaves
from tmrl_like.errors import CheckpointError
from tmrl_like.trainer.manifest import BEFORE, FORMAT, MANIFEST, Manifest, read_manifest
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.schedule import TrainingOffline

log = logging.getLogger("tmrl_like.trainer")

_COUNTERS = ("epoch", "round", "round_steps", "elapsed_s", "total_updates", "total_samples")
_OF_PACER = ("recorded_samples", "unpaced_steps", "limit", "in_lockstep", "tasked_steps", "untasked_training")
_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(eq=False)
class Snapshot:
    """What was learnt by one moment; training may go on meanwhile."""

    training: dict[str, Any]  # tensors and plain values, none of them shared with the training
    manifest: Manifest  # without number and file

    def write(self, path: Path) -> None:
        """Write it to the checkpoint folder `path`.

        Raises:
            CheckpointError: it cannot be written (disk full, no permission), or there are training files without
                a manifest; what is there stays whole.
        """
        previous = read_manifest(path)
        manifest = self.manifest
        manifest.number = previous.number + 1 if previous else 1
        if previous is not None and previous.run == manifest.run:
            manifest.previous = msgspec.structs.replace(previous, previous=None)
        manifest.training = f"training-{manifest.number}.pt"
        buffer = io.BytesIO()
        torch.save(self.training, buffer)
        manifest.checksum = zlib.crc32(buffer.getbuffer())
        try:
            if previous is None:  # from here on there is a manifest, whatever the process is killed in
                give_up_checkpoint(path)
            else:
                write_atomically(path / BEFORE, checked_json(previous))
            write_atomically(path / manifest.training, buffer.getvalue())
            disk.sync_folder(path)
            write_atomically(path / MANIFEST, checked_json(manifest))
            disk.sync_folder(path)
        except OSError as error:
            _remove_others(path, previous)
            raise CheckpointError(f"cannot write the checkpoint to {path}: {error}") from None
        _remove_others(path, manifest)


def take_snapshot(training: TrainingOffline, extra: Mapping[str, Any] | None = None, run: str = "") -> Snapshot:
    """Copy what a checkpoint holds, between two training steps: all but the samples; `extra` values are plain."""
    state = map_leaves(
        lambda value: value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value,
        _training_state(training, dict(extra or {})),
    )
    counted = state["counters"]
    manifest = Manifest(FORMAT, 0, "", training.total_updates, run, 0, counted["epoch"], counted["elapsed_s"])
    return Snapshot(state, manifest)


def load_checkpoint(training: TrainingOffline, path: Path) -> dict[str, Any]:
    """Restore what was learnt and counted into a new `training`; memory and hyper-parameters stay as they are.

    Returns:
        The `extra` values saved with it.

    Raises:
        CheckpointError: damaged, of another format, or of another agent.
    """
    manifest = read_manifest(path)
    if manifest is None:
        raise CheckpointError(f"there is no checkpoint in {path}")
    try:
        state = _newest_whole(path, manifest)
        _load_training_state(training, state)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise CheckpointError(
            f"the checkpoint in {path} does not fit or is damaged ({one_line(error, 400)}); give the experiment the "
            "values that it was made with, or start over: run --fresh, or another --run_name"
        ) from error
    return dict(state["extra"])


def _newest_whole(path: Path, newest: Manifest) -> dict[str, Any]:
    """The state in the newest of the checkpoints that can be read."""
    try:
        return _load_tensors(path / newest.training, newest.checksum)
    except (OSError, ValueError) as damage:
        previous = newest.previous
        if previous is None:
            raise
        try:
            state = _load_tensors(path / previous.training, previous.checksum)
        except (OSError, ValueError):
            raise damage from None
        log.warning(
            "checkpoint %d in %s is damaged (%s): going on from checkpoint %d, of training step %d",
            *(newest.number, path, _first_line(damage), previous.number, previous.training_steps),
        )
        return state


def shared(training: TrainingOffline, extra: Mapping[str, Any], ranks: Alone) -> dict[str, Any]:
    """Give all ranks what rank 0 has learnt and counted, and `extra`, which are plain values; those of rank 0.

    The random generators of the others are seeded from those of rank 0 and their rank.
    """
    if ranks.size == 1:
        return dict(extra)
    buffer = io.BytesIO()
    if ranks.rank == 0:
        torch.save(take_snapshot(training, extra).training, buffer)
    state = torch.load(io.BytesIO(ranks.broadcast(buffer.getvalue())), map_location="cpu", weights_only=True)
    if ranks.rank:
        _load_training_state(training, state)
        seed = zlib.crc32(state["torch_rng"].numpy()) + ranks.rank
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        training.memory.seed(seed)
    return dict(state["extra"])


def give_up_checkpoint(path: Path) -> None:
    """Have the folder hold no complete checkpoint, as it was before the first one; OSError: all is as it was."""
    disk.remove(path / BEFORE)
    write_atomically(path / MANIFEST, checked_json(Manifest(FORMAT, 0)))
    disk.sync_folder(path)


def object_state(holder: Any) -> dict[str, Any]:
    """State of an object's attributes that a restart needs: modules, optimisers, tensors, plain values."""
    own = getattr(type(holder), "state_dict", None)
    if own is not None:
        return dict(holder.state_dict())
    chosen = set(inspect.signature(type(holder).__init__).parameters)  # stay as the restarted script has them
    state = {}
    for name, value in vars(holder).items():
        saved = _value_state(value)
        if saved is not None and not (saved["kind"] == "plain" and name in chosen):
            state[name] = saved
    return state


def load_object_state(holder: Any, state: Mapping[str, Any]) -> None:
    """Restore what `object_state` gave; raises CheckpointError where the object lacks an attribute that was saved."""
    if hasattr(type(holder), "load_state_dict"):
        holder.load_state_dict(state)
        return
    for name, saved in state.items():
        if not hasattr(holder, name):
            raise CheckpointError(f"{type(holder).__name__} has no {name!r}, which the checkpoint holds")
        setattr(holder, name, _restored(getattr(holder, name), saved))


def _value_state(value: Any) -> Any:
    """{"kind": …} for what is saved, None for what is not state (spaces, functions, classes)."""
    if isinstance(value, _PLAIN):
        return {"kind": "plain", "value": value}
    if isinstance(value, torch.Tensor):
        return {"kind": "tensor", "value": value.detach().cpu().clone()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {"kind": "array", "value": torch.from_numpy(np.array(value))}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"kind": "state", "value": dict(value.state_dict())}
    if isinstance(value, list | tuple):
        parts = [_value_state(v) for v in value]
        return None if None in parts else {"kind": "sequence", "value": parts}
    if type(value) is dict:
        parts_by_key = {k: _value_state(v) for k, v in value.items()}
        plain = all(isinstance(k, str | int) for k in value)
        return None if None in parts_by_key.values() or not plain else {"kind": "dict", "value": parts_by_key}
    return None


def _restored(current: Any, saved: Mapping[str, Any]) -> Any:
    kind, value = saved["kind"], saved["value"]
    if kind == "state":
        current.load_state_dict(value)
        return current
    if kind == "tensor" and isinstance(current, torch.Tensor):
        if current.shape != value.shape:
            return value.to(current.device)
        with torch.no_grad():
            return current.copy_(value)  # in place: an optimiser may hold the very tensor
    if kind == "array":
        return value.numpy() if isinstance(current, np.ndarray) else type(current)(value.numpy())
    if kind == "sequence":
        restored = [_restored(c, v) for c, v in zip(current, value, strict=True)]
        return type(current)(restored) if type(current) in (list, tuple) else current
    if kind == "dict":
        return {k: _restored(current.get(k) if isinstance(current, dict) else None, v) for k, v in value.items()}
    return value


def _training_state(training: TrainingOffline, extra: dict[str, Any]) -> dict[str, Any]:
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "agent": object_state(training.agent),
        "counters": {name: getattr(training, name) for name in _COUNTERS},
        "pacer": {name: getattr(training.pacer, name) for name in _OF_PACER},
        "tuning": training.tuning.state(),
        "returns": vars(training.diagnosis.returns),
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python_rng": random.getstate(),
        "numpy_rng": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "memory_rng": json.dumps(training.memory.rng.bit_generator.state),
        "extra": extra,
    }


def _load_training_state(training: TrainingOffline, state: Mapping[str, Any]) -> None:
    load_object_state(training.agent, state["agent"])
    for name in _COUNTERS:
        setattr(training, name, state["counters"][name])
    for name, value in state["pacer"].items():
        setattr(training.pacer, name, value)
    training.tuning.load(state["tuning"])
    vars(training.diagnosis.returns).update(state["returns"])
    torch.set_rng_state(state["torch_rng"])
    if state["cuda_rng"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    random.setstate(state["python_rng"])
    kind, keys, *rest = state["numpy_rng"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    training.memory.rng.bit_generator.state = json.loads(state["memory_rng"])


def _remove_others(path: Path, manifest: Manifest | None) -> None:
    """Remove what the manifest does not name: earlier checkpoints, drafts."""
    keep = {m.training for m in (manifest, manifest and manifest.previous) if m}
    for file in path.glob("training-*.pt"):
        if file.name not in keep:
            with contextlib.suppress(OSError):  # still open somewhere; the next checkpoint tries again
                disk.remove(file)
    remove_drafts(path)


def _load_tensors(path: Path, checksum: int) -> dict[str, Any]:
    """Tensors and plain values only: torch refuses anything else with `weights_only`."""
    data = path.read_bytes()
    if zlib.crc32(data) != checksum:
        raise ValueError(f"the checksum of {path.name} does not match")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises its own kinds, among them one of a module we do not import
        raise ValueError(_first_line(error)) from error
    return state


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
