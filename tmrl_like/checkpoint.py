"""The whole training on disk, and back: no pickle, no code, whole or not at all.

A checkpoint is a folder::

    manifest.json         names the files of the newest complete checkpoint; replaced in one step
    training-N.pt         agent, counters, random generators: tensors and plain values
    memory-N.bin          the replay memory, as the memory itself encodes it

A kill at any moment leaves the manifest of the last complete checkpoint and its files.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from tmrl_like.errors import CheckpointError, DecodingError
from tmrl_like.files import write_atomically
from tmrl_like.memories import state as memory_state
from tmrl_like.training_offline import TrainingOffline

log = logging.getLogger("tmrl_like.trainer")

FORMAT = 1
_PLAIN = (bool, int, float, str, bytes, type(None))


class Manifest(msgspec.Struct):
    """What a checkpoint folder holds."""

    format: int
    number: int
    training: str
    memory: str
    training_steps: int
    samples: int


def save_checkpoint(training: TrainingOffline, path: Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint.

    Args:
        training: what to save.
        path: the checkpoint's folder.
        extra: further plain values to keep with it.

    Raises:
        CheckpointError: it cannot be written (disk full, no permission); the previous one stays whole.
    """
    previous = _read_manifest(path)
    number = previous.number + 1 if previous else 1
    manifest = Manifest(
        FORMAT, number, f"training-{number}.pt", f"memory-{number}.bin", training.total_updates, training.total_samples
    )
    buffer = io.BytesIO()
    torch.save(_training_state(training, dict(extra or {})), buffer)
    try:
        write_atomically(path / manifest.training, buffer.getvalue())
        write_atomically(path / manifest.memory, memory_state.encode(training.memory.state_dict()))
        write_atomically(path / "manifest.json", msgspec.json.encode(manifest))
    except OSError as error:
        raise CheckpointError(f"cannot write the checkpoint to {path}: {error}") from None
    _remove_others(path, manifest)


def load_checkpoint(training: TrainingOffline, path: Path, memory_only: bool = False) -> dict[str, Any]:
    """Restore a checkpoint into a freshly built `training`.

    Args:
        training: built by the same class as the one saved; hyper-parameters stay as built, what was learnt
            and counted is restored.
        path: the checkpoint's folder.
        memory_only: restore the replay memory, start everything else anew.

    Returns:
        The `extra` values saved with it.

    Raises:
        CheckpointError: damaged, of another format, or of another agent.
    """
    manifest = _read_manifest(path)
    if manifest is None:
        raise CheckpointError(f"there is no checkpoint in {path}")
    try:
        memory = (path / manifest.memory).read_bytes()
        state = _load_tensors(path / manifest.training)
        training.memory.load_state_dict(memory_state.decode(memory))
        if "stale" in state:
            training.stale.load_state_dict(state["stale"])
        if memory_only:
            training.total_samples = len(training.memory)
        else:
            _load_training_state(training, state)
    except CheckpointError:
        raise
    except (OSError, DecodingError, RuntimeError, KeyError, ValueError, TypeError, EOFError) as error:
        raise CheckpointError(
            f"the checkpoint in {path} does not fit or is damaged ({_first_line(error)}); restore the settings it was "
            "made with, or start anew with another run name"
        ) from error
    return dict(state["extra"])


def has_checkpoint(path: Path) -> bool:
    """Whether `path` holds a checkpoint."""
    return (path / "manifest.json").is_file()


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
    """Restore what `object_state` gave.

    Raises:
        CheckpointError: the object lacks an attribute that was saved.
    """
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
    if kind == "tensor":
        return _into(current, value)
    if kind == "array":
        return value.numpy() if isinstance(current, np.ndarray) else type(current)(value.numpy())
    if kind == "sequence":
        restored = [_restored(c, v) for c, v in zip(current, value, strict=True)]
        return type(current)(restored) if type(current) in (list, tuple) else current
    if kind == "dict":
        return {k: _restored(current.get(k) if isinstance(current, dict) else None, v) for k, v in value.items()}
    return value


def _into(current: Any, value: torch.Tensor) -> torch.Tensor:
    """In place where possible: an optimiser may hold the very tensor."""
    if isinstance(current, torch.Tensor) and current.shape == value.shape:
        with torch.no_grad():
            current.copy_(value)
        return current
    return value.to(current.device) if isinstance(current, torch.Tensor) else value


def _training_state(training: TrainingOffline, extra: dict[str, Any]) -> dict[str, Any]:
    kind, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "agent": object_state(training.agent),
        "epoch": training.epoch,
        "total_updates": training.total_updates,
        "total_samples": training.total_samples,
        "stale": training.stale.state_dict(),
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python_rng": random.getstate(),
        "numpy_rng": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached),
        "extra": extra,
    }


def _load_training_state(training: TrainingOffline, state: Mapping[str, Any]) -> None:
    load_object_state(training.agent, state["agent"])
    training.epoch = state["epoch"]
    training.total_updates = state["total_updates"]
    training.total_samples = state["total_samples"]
    torch.set_rng_state(state["torch_rng"])
    if state["cuda_rng"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda_rng"])
    random.setstate(state["python_rng"])
    kind, keys, *rest = state["numpy_rng"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))


def _read_manifest(path: Path) -> Manifest | None:
    try:
        manifest = msgspec.json.decode((path / "manifest.json").read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(
            f"{path} is no checkpoint that can be read ({error}); move it away to start anew"
        ) from None
    if manifest.format != FORMAT:
        raise CheckpointError(f"the checkpoint in {path} has format {manifest.format}, this tmrl_like reads {FORMAT}")
    return manifest


def _remove_others(path: Path, manifest: Manifest) -> None:
    keep = {manifest.training, manifest.memory}
    for pattern in ("training-*.pt", "memory-*.bin", ".*.tmp"):
        for file in path.glob(pattern):
            if file.name not in keep:
                with contextlib.suppress(OSError):  # still open somewhere; the next checkpoint tries again
                    file.unlink()


def _load_tensors(path: Path) -> dict[str, Any]:
    """Tensors and plain values only: torch refuses anything else with `weights_only`."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch raises its own kinds, among them one of a module we do not import
        raise ValueError(_first_line(error)) from error
    return state


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
