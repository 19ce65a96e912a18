"""What an environment repeats in its observations, described once for the compressor and the
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.base import tree
from tmrl_like.base.factories import taken_apart
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.types import Action, Observation, SampleCompressor

FrameStack: TypeAlias = int | Mapping[str | int, int]
"""The number of frames in a stack: of the observation itself, or of its items by key or position;
0: no stack.
"""


def stacks_in(frame_stack: FrameStack) -> dict[tree.Path, int]:
    """Return the number of frames in each stack, by its place in the observation."""
    if isinstance(frame_stack, Mapping):
        return {(key,): size for key, size in frame_stack.items()}
    return {(): frame_stack} if frame_stack else {}


@dataclass(frozen=True)
class DropHistory:
    """The compressor of `ReplayMemory`: of each stack it keeps only the newest frame, and it drops
    the action buffer.

    `ReplayMemory.compressor(…)` makes one from the memory's own arguments.

    Attributes:
        act_buf_len: number of actions that the environment appends to its observations, as in
            rtgym's configuration.
        frame_stack: see `ReplayMemory`.
    """

    act_buf_len: int = 0
    frame_stack: FrameStack = 0

    def __post_init__(self) -> None:
        if self.act_buf_len < 0:
            raise ConfigError(f"act_buf_len is {self.act_buf_len}; it counts actions, 0 or more")
        stacks = stacks_in(self.frame_stack)
        if any(type(size) is not int or size < 1 for size in stacks.values()):
            raise ConfigError(
                f"frame_stack is {self.frame_stack}; it counts frames: 4, or {{item: 4}}"
            )
        if self.act_buf_len and () in stacks:
            raise ConfigError(
                f"frame_stack is {self.frame_stack} and act_buf_len {self.act_buf_len}: with an "
                "action buffer the observation is a tuple; say which item is the stack, e.g. {0: 4}"
            )

    def __call__(self, act: Action, obs: Observation, /, *others: Any) -> Sequence[Any]:
        """Return the sample with its observation reduced to what is new. Raises as `reduced`
        does.
        """
        return act, self.reduced(obs), *others

    def reduced(self, obs: Observation) -> Observation:
        """Return what is new in an observation.

        Raises:
            MemoryContractError: the observation does not match `act_buf_len` and `frame_stack`.
        """
        if self.act_buf_len:
            if type(obs) is not tuple or len(obs) <= self.act_buf_len:
                raise MemoryContractError(
                    f"the compressor got an observation that is {tree.outline(obs)}; with "
                    f"act_buf_len {self.act_buf_len} it must be a tuple that ends in "
                    f"{self.act_buf_len} actions (act_in_obs and act_buf_len of the environment)"
                )
            obs = obs[: len(obs) - self.act_buf_len]
        if not self.frame_stack:
            return obs
        if not isinstance(self.frame_stack, Mapping):
            return _newest(obs, self.frame_stack, "the observation")
        if type(obs) is not tuple and type(obs) is not dict:
            raise MemoryContractError(
                f"frame_stack names the items {list(self.frame_stack)}, but the observation is "
                f"{tree.outline(obs)}, no tuple or dict"
            )
        items: Any = dict(obs) if type(obs) is dict else list(obs)
        for key, size in self.frame_stack.items():
            try:
                items[key] = _newest(items[key], size, f"obs[{key!r}]")
            except (KeyError, IndexError, TypeError):
                raise MemoryContractError(
                    f"frame_stack names the item {key!r}, which the observation does not have: "
                    f"{tree.outline(obs)}"
                ) from None
        return items if type(obs) is dict else tuple(items)


def compressor_of(memory_cls: Callable[..., object]) -> SampleCompressor | None:
    """Return the compressor that belongs to a memory, given as a class or a `partial` of one with
    its arguments.

    Returns:
        The result of the class's `compressor` for the arguments; None, also if there is no such
        method: samples are sent whole.
    """
    cls, arguments = taken_apart(memory_cls)
    make = getattr(cls, "compressor", None)
    return None if make is None else make(**arguments)


def _newest(stack: Observation, size: int, name: str) -> Observation:
    if type(stack) is not np.ndarray or stack.shape[:1] != (size,):
        raise MemoryContractError(
            f"frame_stack says that {name} is a stack of {size} frames, [{size}, ...]; it is "
            f"{tree.outline(stack)}"
        )
    return stack[-1]
