"""The base of the interfaces that ship: an rtgym interface split into methods that act, observe and
reward.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from rtgym import RealTimeGymInterface

from tmrl_like.envs.actions import neutral_action

State = TypeVar("State")


class TaskInterface(RealTimeGymInterface, Generic[State]):  # type: ignore[misc]
    """An rtgym interface whose resets and steps are composed of `begin`, `look`, `judge`, `observe`
    and `describe`.

    Nothing is opened, started or moved before the first reset, because a trainer also makes an
    interface, just to read its spaces.

    Attributes:
        random: generator for what differs between episodes; a reset with a seed restarts it.
    """

    def __init__(self) -> None:
        self.random = np.random.default_rng()

    def begin(self) -> State:
        """Set everything up for a new episode, and return its first state."""
        raise NotImplementedError

    def look(self) -> State:
        """Return the current state."""
        raise NotImplementedError

    def judge(self, state: State) -> tuple[float, bool]:
        """Return the reward of the step that led to `state`, and whether the episode terminates."""
        raise NotImplementedError

    def observe(self, state: State) -> list[Any]:
        """Return the observation, without past actions; called once per state, after `judge`."""
        raise NotImplementedError

    def describe(self, state: State) -> dict[str, Any]:
        """Return the `info` of a step or a reset; called last."""
        return {}

    def get_default_action(self) -> Any:
        """Return a neutral action."""
        return neutral_action(self.get_action_space())

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Begin an episode; return its first observation and `info`."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        state = self.begin()
        return self.observe(state), self.describe(state)

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], np.float32, bool, dict[str, Any]]:
        """Return what a step gives: observation, reward, whether it terminated, and `info`."""
        state = self.look()
        reward, terminated = self.judge(state)
        return self.observe(state), np.float32(reward), terminated, self.describe(state)
