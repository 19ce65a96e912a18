"""A table of inputs from which a policy chooses one by its number."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.envs.actions import NUMBERS, typed_action
from tmrl_like.errors import ConfigError, expect


class ActionTable:
    """A table of inputs, so that an integer can drive an interface that takes a Box, MultiDiscrete
    or MultiBinary: only its `send_control` sees the rows.

    Attributes:
        inputs: the rows.
        space: the action space, `Discrete(len(inputs))`.
    """

    def __init__(self, inputs: Sequence[Any], space: gymnasium.Space[Any]) -> None:
        """Convert the rows to actions of `space`.

        Raises:
            ConfigError: there are no rows, or one is not such an action.
        """
        is_table = not isinstance(inputs, str) and len(inputs) > 0
        expect(is_table, "inputs", inputs, "a table of one row or more")
        if not isinstance(space, NUMBERS):
            raise ConfigError(
                f"no table of inputs fits {space}; expected a Box, MultiDiscrete or MultiBinary"
            )
        self.inputs = [typed_action(row, space) for row in inputs]
        for i, row in enumerate(inputs):
            if not space.contains(self.inputs[i]):
                raise ConfigError(
                    f"row {i} of the table of inputs is {row}; expected an action of {space}"
                )
        self.space = spaces.Discrete(len(self.inputs))

    def __call__(self, index: Any) -> Any:
        """Return a copy of the row with this number."""
        return copy(self.inputs[index])

    def index_of(self, action: Any) -> np.int64:
        """Return the number of the row that equals this action; raise ConfigError, which names the
        nearest row, if there is none.
        """
        nearest = np.argmin(
            [np.abs(np.subtract(row, action, dtype=np.float64)).sum() for row in self.inputs]
        )
        if not np.array_equal(self.inputs[nearest], np.asarray(action, self.inputs[nearest].dtype)):
            raise ConfigError(
                f"the table of inputs lacks the default action {np.asarray(action).tolist()}, "
                f"which resets send; add it: the nearest row is {nearest}, "
                f"{self.inputs[nearest].tolist()}"
            )
        return nearest
