"""From `get_transition` to a batch: what is trained on, checked and preprocessed, whatever the memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tmrl_like.errors import MemoryContractError
from tmrl_like.replay.crc import check_transition
from tmrl_like.types import Batch, Buffer, Info, ObsPreprocessor, SamplePreprocessor, Transition

logger = logging.getLogger(__name__)

_SIX = "(last_obs, act, rew, obs, terminated, truncated)"
_SEVEN = f"{_SIX[:-1]}, info)"
_TRIES_PER_TRANSITION = 100
_TRIES_AT_LEAST = 1000
_LOG_EVERY = 10_000


class Memory(Protocol):
    """What the parts of `MemoryDataloading` need of it."""

    device: str
    batch_size: int
    obs_preprocessor: ObsPreprocessor | None
    sample_preprocessor: SamplePreprocessor | None
    handles_resets: bool
    crc_debug: bool
    crc_checked: int

    def __len__(self) -> int: ...
    def append(self, buffer: Buffer) -> None: ...
    def flush(self) -> None: ...
    def get_transition(self, item: int) -> Transition | tuple[Any, ...]: ...
    def sample_indices(self) -> Iterable[int]: ...
    def collate(self, batch: list[tuple[Any, ...]], device: str) -> Batch | tuple[Any, ...]: ...


def draw(memory: Memory) -> Iterator[tuple[Any, ...]]:
    """Yield transitions to train on, for as long as a bounded number of draws finds them."""
    failures = 0
    limit = _TRIES_AT_LEAST + _TRIES_PER_TRANSITION * memory.batch_size
    while failures < limit:
        if not len(memory):
            raise MemoryContractError("there is no transition in the memory yet: wait until `memory.ready`")
        failures += 1
        for item in memory.sample_indices():
            transition = transition_of(memory, item)
            if transition is None:
                failures += 1
            else:
                failures = 0
                yield transition
    raise MemoryContractError(
        f"{limit} transitions in a row, drawn at random from {len(memory)}, all end in a reset or in context: there "
        "is nothing to train on yet; wait until `memory.ready`"
    )


def transition_of(memory: Memory, item: int) -> tuple[Any, ...] | None:
    """Rebuild, check and preprocess one item; None where it must not be trained on."""
    transition = memory.get_transition(item)
    if not is_trainable(memory, transition):
        return None
    if memory.crc_debug:
        check_transition(getattr(transition[-1], "original", None), transition)
        memory.crc_checked += 1
        logger.debug("CRC check passed: transition %d", memory.crc_checked)
        if memory.crc_checked == 1 or memory.crc_checked % _LOG_EVERY == 0:
            logger.info("CRC check passed: %d so far are what the environment produced", memory.crc_checked)
    return preprocessed(memory, tuple(transition[:-1]))


def is_trainable(memory: Memory, transition: Sequence[Any]) -> bool:
    """Whether a transition ends in neither reset nor context."""
    name = type(memory).__name__
    _check_number(f"{name}.get_transition", transition, _SEVEN)
    info = transition[-1]
    if isinstance(info, Info):
        return not (info.is_reset or info.is_context)
    if memory.handles_resets:
        return True
    raise MemoryContractError(
        f"{name}.get_transition returned an info of type {type(info).__name__}, so that transitions across a reset "
        "cannot be recognised: return the sample's own info (and keep info a dict in the sample_compressor), or set "
        "handles_resets = True on your class if it keeps them out itself"
    )


def preprocessed(memory: Memory, six: tuple[Any, ...]) -> tuple[Any, ...]:
    """(last_obs, act, rew, obs, terminated, truncated), or a batch of these, as the agent sees them."""
    last_obs, act, rew, obs, *flags = six
    if memory.obs_preprocessor is not None:
        last_obs, obs = memory.obs_preprocessor(last_obs), memory.obs_preprocessor(obs)
    if memory.sample_preprocessor is None:
        return last_obs, act, rew, obs, *flags
    result = memory.sample_preprocessor(last_obs, act, rew, obs, *flags)
    _check_number("sample_preprocessor", result, _SIX)
    return tuple(result)


def batch_of(memory: Memory, transitions: list[tuple[Any, ...]]) -> Batch:
    """Collate with the memory's own `collate`."""
    batch = memory.collate(transitions, memory.device)
    _check_number(f"{type(memory).__name__}.collate", batch, f"({', '.join(Batch._fields)})")
    return batch if isinstance(batch, Batch) else Batch(*batch)


def _check_number(who: str, value: Any, expected: str) -> None:
    is_sequence = isinstance(value, tuple | list)
    missing = expected.count(",") + 1 - len(value) if is_sequence else 0
    if is_sequence and not missing:
        return
    found = f"{len(value)} items" if is_sequence else f"a {type(value).__name__}"
    hint = ": the old `done` is split into `terminated` and `truncated`" if missing == 1 else ""
    raise MemoryContractError(f"{who} returned {found}; expected {expected}{hint}")
