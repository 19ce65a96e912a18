"""The compressor for action buffers alone: actions cross the wire once, not `act_buf_len` times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tmrl_like.errors import ConfigError
from tmrl_like.replay.layout import without_action_buffer
from tmrl_like.types import Action, Observation


@dataclass(frozen=True)
class DropActionBuffer:
    """Cuts the action buffer off the end of a tuple observation; `ReplayMemory` puts it back.

    Attributes:
        act_buf_len: how many actions the environment appends to its observations, as in rtgym's
            configuration and in `ReplayMemory(act_buf_len=…)`.
    """

    act_buf_len: int

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            ConfigError: negative.
        """
        if self.act_buf_len < 0:
            raise ConfigError(f"act_buf_len is {self.act_buf_len}; it counts actions, 0 or more")

    def __call__(
        self, act: Action, obs: Observation, rew: Any, terminated: bool, truncated: bool, info: dict[str, Any], /
    ) -> tuple[Any, ...]:
        """Return the sample with the observation shortened by `act_buf_len` items.

        Raises:
            MemoryContractError: the observation is no tuple, or not longer than the action buffer.
        """
        return act, without_action_buffer(obs, self.act_buf_len), rew, terminated, truncated, info
