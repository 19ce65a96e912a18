"""What the environments that ship are made of: an rtgym interface that says what is done, seen and
rewarded.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
from rtgym import RealTimeGymInterface

from tmrl_like.envs.actions import neutral_action

State = TypeVar("State")


class TaskInterface(RealTimeGymInterface, Generic[State]):  # type: ignore[misc]
    """An rtgym interface whose `reset` and step are made of `begin`, `look`, `judge`, `observe` and
    `describe`.

    Nothing is touched before the first reset: a trainer makes an interface, too, to see its spaces.

    Attributes:
        random: draws what differs between episodes; the seed of a reset begins it again.
    """

    def __init__(self) -> None:
        self.random = np.random.default_rng()

    def begin(self) -> State:
        """Bring everything to the beginning of an episode; returns what there is to see then."""
        raise NotImplementedError

    def look(self) -> State:
        """What there is to see now."""
        raise NotImplementedError

    def judge(self, state: State) -> tuple[float, bool]:
        """The reward of the step that ended so, and whether the episode terminates."""
        raise NotImplementedError

    def observe(self, state: State) -> list[Any]:
        """The observation, without actions; called once for each state, after `judge`."""
        raise NotImplementedError

    def describe(self, state: State) -> dict[str, Any]:
        """`info`, of resets as well; called last."""
        return {}

    def get_default_action(self) -> Any:
        """A neutral one."""
        return neutral_action(self.get_action_space())

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self.random = np.random.default_rng(seed)
        state = self.begin()
        return self.observe(state), self.describe(state)

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], np.float32, bool, dict[str, Any]]:
        """Look, and judge."""
        state = self.look()
        reward, terminated = self.judge(state)
        return self.observe(state), np.float32(reward), terminated, self.describe(state)
