"""The observations and actions of a data set, for training an actor without an environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from tmrl_like.base import tree
from tmrl_like.base.factories import replaced, taken_apart
from tmrl_like.errors import ConfigError
from tmrl_like.replay.contract import MemoryDataloading, MemoryFactory
from tmrl_like.replay.demonstrations import WithDemonstrations
from tmrl_like.replay.streams import recorded_episodes
from tmrl_like.types import Action, Buffer, Observation
from tmrl_like.wire.spaces import Space

_NOT_NEEDED = {
    "dataset_path": "",
    "demonstrations_path": "",
    "held_out": 0.0,
}


class ShownStep(NamedTuple):
    """A recorded step: the observation as an actor sees it, and the action that was taken.

    Attributes:
        raw_parts: how many of the last parts of `obs` are as the environment gave them.
    """

    obs: Observation
    act: Action
    episode: int
    raw_parts: int


def shown_steps(
    buffers: Iterable[Buffer],
    memory_cls: MemoryFactory,
    observation_space: Space,
    action_space: Space,
) -> list[ShownStep]:
    """Return the steps of a data set, rebuilt by a memory; only the demonstrations, if there are
    any.

    Args:
        buffers: samples of the data set, reduced by the memory's compressor.
        memory_cls: makes the memory that rebuilds the observations: the experiment's.
        observation_space: the environment's.
        action_space: the environment's.

    Raises:
        ConfigError: there is no step.
        MemoryContractError: the samples do not fit the memory.
    """
    target, _ = taken_apart(memory_cls)
    if not (isinstance(target, type) and issubclass(target, WithDemonstrations)):
        memory_cls = partial(WithDemonstrations, memory_cls)
    memory_cls = _bare(memory_cls)
    own: list[ShownStep] = []
    demonstrated: list[ShownStep] = []
    for episode, samples in enumerate(recorded_episodes(buffers)):
        memory = memory_cls(observation_space=observation_space, action_space=action_space)
        assert isinstance(memory, WithDemonstrations)
        memory.takeovers = True  # whatever a training does with them
        memory.append(Buffer(samples, "shown"))
        memory.flush()
        own += _steps_of(memory.own, episode)
        demonstrated += _steps_of(memory.demonstrations, episode)
    if not own and not demonstrated:
        raise ConfigError("the data set shows no step to learn from")
    return demonstrated or own


def _bare(memory_cls: MemoryFactory) -> MemoryFactory:
    """Return the factory of a memory, and of the one inside it, without what is not needed."""
    _, given = taken_apart(memory_cls)
    plain: dict[str, Any] = {name: none for name, none in _NOT_NEEDED.items() if name in given}
    if given.get("memory") is not None:  # else it is chosen by a class of the user's own
        plain["memory"] = _bare(given["memory"])
    return replaced(memory_cls, **plain)


def _steps_of(memory: MemoryDataloading, episode: int) -> Iterator[ShownStep]:
    for item in range(len(memory)):
        transition = memory.get_transition(item)
        if memory.is_trainable(transition):
            raw, act, *_ = transition
            obs = raw if memory.obs_preprocessor is None else memory.obs_preprocessor(raw)
            pairs = zip(*(reversed([*tree.leaves(value)]) for value in (raw, obs)), strict=False)
            raw_parts = len([*takewhile(lambda pair: np.array_equal(*pair), pairs)])
            yield ShownStep(obs, act, episode, raw_parts)
