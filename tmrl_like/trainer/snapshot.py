"""Everything that was learnt, as tensors and plain values, and its restoration: no pickle, no code.

`take_snapshot` runs in the training thread, `Snapshot.write` in any.
"""

from __future__ import annotations

import contextlib
import enum
import io
import logging
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import torch

from tmrl_like.base.factories import signature_of
from tmrl_like.base.text import one_line
from tmrl_like.base.tree import is_leaf, leaves, map_leaves
from tmrl_like.errors import CheckpointError, ConfigError
from tmrl_like.trainer.checkpoint_file import (
    FORMAT,
    Head,
    Kept,
    read_newest,
    write_checkpoint,
)
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.schedule import TrainingOffline

log = logging.getLogger("tmrl_like.trainer")

State: TypeAlias = dict[str, Any]
"""Tensors and plain values by name, in nested lists and dicts."""

_PLAIN = (bool, int, float, str, bytes, type(None))


@dataclass(eq=False)
class Snapshot:
    """What had been learnt at one moment. Training may go on while it is written."""

    head: Head
    state: State  # shares no tensor with the training

    def write(self, path: Path) -> None:
        """Write the snapshot to the checkpoint folder `path`. If this raises OSError (disk full, no
        permission), existing checkpoints stay intact.
        """
        write_checkpoint(path, self.head, _bytes_of(self.state))


def take_snapshot(training: TrainingOffline, run: str = "", unstored_samples: int = 0) -> Snapshot:
    """Copy what a checkpoint holds, between two training steps: everything but the samples.

    Args:
        training: the training to copy from.
        run: identifies the training.
        unstored_samples: samples that are counted, but will arrive again if training resumes from
            this checkpoint.
    """
    head = Head(FORMAT, 0, run, training.total_updates, training.epoch, training.elapsed_s)
    return Snapshot(head, _state_of(training) | {"unstored_samples": unstored_samples})


def load_checkpoint(training: TrainingOffline, path: Path) -> Head | None:
    """Restore what was learnt and counted into a new `training`; its memory and hyper-parameters
    stay as they are.

    Returns:
        The head of the checkpoint, or None if there is no checkpoint.

    Raises:
        CheckpointError: it is damaged, has another format, or belongs to another agent.
    """
    found = read_newest(path)
    if found is None:
        return None
    try:
        state = _from_bytes(found.body)
        _restore(training, state)
        stored = training.total_samples - state["unstored_samples"]
        training.pacer.recount(training.total_samples, stored)
        training.total_samples = stored
    except (RuntimeError, LookupError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise CheckpointError(
            f"the checkpoint in {path} does not fit or is damaged ({one_line(error, 400)}); give "
            "the experiment the values that it was made with, or start over: run --fresh, or "
            "another --run_name"
        ) from error
    for damaged in found.damaged:  # otherwise one of them would be kept as the one before the next
        with contextlib.suppress(OSError):
            damaged.replace(damaged.with_name(f"damaged-{damaged.name}"))
    return found.head


def share(training: TrainingOffline, ranks: Alone) -> None:
    """Give all ranks what rank 0 has learnt and counted; each then draws random numbers of its
    own.
    """
    if ranks.size == 1:
        return
    state = _from_bytes(ranks.broadcast(bytes(_bytes_of(_state_of(training)))))
    if ranks.rank:
        _restore(training, state)
        seed = zlib.crc32(state["torch_rng"].numpy()) + ranks.rank
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        training.memory.seed(seed)


def _state_of(training: TrainingOffline) -> State:
    parts = {
        "agent": object_state(training.agent),
        "training": training.state_dict(),
        "kept": vars(training.kept) | {"receipts": ()},  # the stored samples say them
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python_rng": random.getstate(),
        "numpy_rng": _encoded(np.random.get_state(legacy=False)),
        "memory_rng": _encoded(training.memory.rng.bit_generator.state),
    }
    state: State = _plain(parts)
    return state


def _plain(value: Any) -> Any:
    """Copy a value; numpy's scalars and instances of derived classes become plain values, since
    torch would write them and not read them again, and arrays `Parameter`s, as tensors never do.

    Raises:
        ConfigError: torch would not read the value again.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(part) for key, part in value.items()}
    if not is_leaf(value):
        return (list if isinstance(value, list) else tuple)(map(_plain, value))
    if isinstance(value, np.generic):
        value = value.item()
    for kind in (int, float, str, bytes):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind.__getnewargs__(value)[0]  # type: ignore[arg-type]
    if isinstance(value, _PLAIN):
        return value
    try:
        if isinstance(value, np.ndarray):
            return torch.nn.Parameter(torch.from_numpy(np.array(value)), requires_grad=False)
        return _from_bytes(_bytes_of(value))
    except Exception as error:  # of pickle or torch
        raise ConfigError(
            f"a state_dict holds {one_line(repr(value), 100)}, a {type(value).__name__}; a "
            "checkpoint holds only numbers, text, tensors, arrays of numbers, and lists, tuples "
            "and dicts of these"
        ) from error


def _restore(training: TrainingOffline, state: State) -> None:
    load_object_state(training.agent, state["agent"])
    training.load_state_dict(state["training"])
    training.kept = Kept(**state["kept"])
    torch.set_rng_state(state["torch_rng"])
    if state["cuda_rng"] and torch.cuda.is_available():
        # this machine may have fewer GPUs
        torch.cuda.set_rng_state_all(state["cuda_rng"][: torch.cuda.device_count()])
    random.setstate(state["python_rng"])
    np.random.set_state(_restored(None, state["numpy_rng"]))
    training.memory.rng.bit_generator.state = _restored(None, state["memory_rng"])


def object_state(holder: Any) -> State:
    """Return the state of those attributes of an object that a restart needs: modules, optimisers,
    tensors, plain values.

    Tensors are the object's own, not copies. Constructor arguments that are plain values are left
    out, so that the restarted script decides them.

    Raises:
        ConfigError: the state would lack parameters that training changes.
    """
    if hasattr(type(holder), "state_dict"):
        return dict(holder.state_dict())
    given = signature_of(type(holder)).parameters
    state = {}
    left_out = {}
    for name, value in vars(holder).items():
        if not (name in given and isinstance(value, _PLAIN)):
            try:
                state[name] = _encoded(value)
            except _NoState:
                left_out[name] = value
    kept = {_memory_of(leaf) for leaf in leaves(state) if isinstance(leaf, torch.Tensor)}
    for name, value in left_out.items():
        if any(_memory_of(parameter) not in kept for parameter in _parameters_in(value)):
            raise ConfigError(
                f"{type(holder).__name__}.{name} is a {type(value).__name__} with parameters that "
                "no checkpoint would hold: make its modules and optimisers attributes, or lists, "
                "tuples or dicts of nothing else, or write state_dict and load_state_dict"
            )
    return state


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _parameters_in(value: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the parameters that training may change, of modules among a value's items and
    attributes.
    """
    if isinstance(value, torch.nn.Module):
        yield from (p for p in value.parameters() if p.requires_grad)
    elif depth:
        parts: Iterable[object] = ()
        if isinstance(value, Mapping):
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        elif not isinstance(value, type | ModuleType):
            parts = getattr(value, "__dict__", {}).values()
        for part in tuple(parts):
            yield from _parameters_in(part, depth - 1)


def load_object_state(holder: Any, state: State) -> None:
    """Restore what `object_state` returned.

    Raises:
        ValueError: the object lacks an attribute that was saved.
    """
    if hasattr(type(holder), "load_state_dict"):
        holder.load_state_dict(state)
        return
    for name, saved in state.items():
        if not hasattr(holder, name):
            raise ValueError(f"{type(holder).__name__} has no {name!r}, which the checkpoint holds")
        setattr(holder, name, _restored(getattr(holder, name), saved))


class _NoState(Exception):  # noqa: N818 - not an error
    """Raised for values that are not saved: functions, classes, and containers of these."""


def _encoded(value: Any) -> Any:
    """Encode a value as plain values and tensors in lists and dicts; arrays, their scalars and
    objects with a state become (kind, content).
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return kind, torch.from_numpy(np.array(value))
    if isinstance(value, (*_PLAIN, torch.Tensor)):
        return value
    if isinstance(value, gymnasium.Space):
        return "space", one_line(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return "state", dict(value.state_dict())
    if isinstance(value, list | tuple):
        return [_encoded(part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str | int) for key in value):
        return {key: _encoded(part) for key, part in value.items()}
    raise _NoState


def _restored(current: Any, saved: Any) -> Any:
    """Return the restored value of an attribute. Values are filled in place where possible, because
    an optimiser may hold the same tensor.
    """
    if isinstance(saved, tuple):
        kind, content = saved
        if kind == "array":
            return content.numpy()
        if kind == "scalar":
            return content.numpy()[()]
        if kind == "space":
            if content != one_line(current):
                log.warning(
                    "the checkpoint is of %s, this training of %s: what was learnt is scaled to "
                    "the new bounds",
                    content,
                    one_line(current),
                )
            return current
        if current is None:
            raise ValueError(
                "it holds the state of an object that the agent does not have: make it in __init__"
            )
        current.load_state_dict(content)
        return current
    if isinstance(saved, list):
        return _restored_list(current, saved)
    if isinstance(saved, dict):
        parts = current if isinstance(current, dict) else {}
        restored = {key: _restored(parts.get(key), part) for key, part in saved.items()}
        if type(parts) is dict:
            return restored
        parts.clear()
        parts.update(restored)
        return parts
    if isinstance(saved, torch.Tensor) and isinstance(current, torch.Tensor):
        if current.shape != saved.shape:
            return saved.to(current.device)
        with torch.no_grad():
            return current.copy_(saved)
    if isinstance(current, enum.Enum) and saved is not None:
        return type(current)(saved)
    return saved


def _restored_list(current: Any, saved: list[Any]) -> Any:
    before = current if isinstance(current, list | tuple) else []
    if len(before) != len(saved):
        if current and any(isinstance(part, torch.Tensor) for part in saved):
            raise ValueError(f"it holds a list of {len(saved)} tensors, and the agent another")
        # plain values whose number changes in training, or which are made in it
        before = [None] * len(saved)
    restored = [_restored(*pair) for pair in zip(before, saved, strict=True)]
    if hasattr(type(current), "_make"):  # a namedtuple
        return type(current)._make(restored)
    if isinstance(current, tuple):
        return type(current)(restored)
    if isinstance(current, list) and type(current) is not list:
        current[:] = restored
        return current
    return restored


def _bytes_of(state: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _from_bytes(data: bytes | memoryview) -> Any:
    """Load tensors, arrays and plain values; with `weights_only`, torch refuses anything else.
    Raises ValueError if the data is not valid.
    """
    try:
        state = torch.load(  # noqa: TID251
            io.BytesIO(data), map_location="cpu", weights_only=True
        )
    except Exception as error:
        # torch raises its own exceptions, some from a module that we do not import
        raise ValueError(one_line(error, 200)) from error
    return map_leaves(_array_or_as_it_is, state)


def _array_or_as_it_is(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, torch.nn.Parameter) else leaf
