"""A table of inputs from which a policy chooses one by its number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import TransformAction

from tmrl_like.base.text import suggestion
from tmrl_like.envs.actions import NUMBERS, default_action, held_actions, typed_action
from tmrl_like.errors import ConfigError, expect

Inputs = str | Sequence[Any]


class ActionTable:
    """A table of inputs, so that an integer can drive an environment that takes a Box,
    MultiDiscrete or MultiBinary.

    An environment in real time takes the table as its argument `inputs`: its action buffer then
    holds integers, and only the interface's `send_control` sees the rows. Any other environment is
    wrapped.

    Attributes:
        inputs: the rows.
        space: the action space, `Discrete(len(inputs))`.
    """

    def __init__(self, inputs: Inputs, tables: Mapping[str, Sequence[Any]] | None = None) -> None:
        """Set up the rows.

        Args:
            inputs: an action of the environment in each row, or the name of one of `tables`.
            tables: the environment's own tables by name.

        Raises:
            ConfigError: there are no rows, or no table of that name.
        """
        if isinstance(inputs, str):
            tables = tables or {}
            if inputs not in tables:
                raise ConfigError(
                    f"this environment has no table of inputs {inputs!r}; "
                    f"{suggestion(inputs, tables)}"
                )
            inputs = tables[inputs]
        expect(len(inputs) > 0, "inputs", inputs, "a table of one row or more")
        self.inputs = list(inputs)
        self.space = spaces.Discrete(len(self.inputs))

    def __call__(self, index: Any) -> Any:
        """Return a copy of the row with this number."""
        return copy(self.inputs[index])

    def fit(self, space: gymnasium.Space[Any]) -> None:
        """Convert the rows to actions of `space`; raise ConfigError if a row is not one."""
        if not isinstance(space, NUMBERS):
            raise ConfigError(
                f"no table of inputs fits {space}; expected a Box, MultiDiscrete or MultiBinary"
            )
        for i, row in enumerate(self.inputs):
            action = typed_action(row, space)
            if not space.contains(action):
                raise ConfigError(
                    f"row {i} of the table of inputs is {row}; expected an action of {space}"
                )
            self.inputs[i] = action

    def index_of(self, action: Any) -> np.int64:
        """Return the number of the row that equals this action; raise ConfigError, which names the
        nearest row, if there is none.
        """
        nearest = self.nearest(action)
        if not np.array_equal(self.inputs[nearest], np.asarray(action, self.inputs[nearest].dtype)):
            raise ConfigError(
                f"the table of inputs lacks the default action {np.asarray(action).tolist()}, "
                f"which resets send; add it: the nearest row is {nearest}, "
                f"{self.inputs[nearest].tolist()}"
            )
        return nearest

    def nearest(self, action: Any) -> np.int64:
        """Return the number of the row that differs least from this action."""
        return np.int64(
            np.argmin(
                [np.abs(np.subtract(row, action, dtype=np.float64)).sum() for row in self.inputs]
            )
        )

    def wrap(self, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
        """Wrap an environment so that integers drive it.

        Raises:
            ConfigError: a row is not one of its actions, or its observations end in past actions.
        """
        if held_actions(env):
            raise ConfigError(
                "its observations end in past actions, which would not be the policy's: give the "
                "table to the environment itself, as `inputs` (of rtgym's dictionary, where it has "
                "one)"
            )
        self.fit(env.action_space)
        by_number: Any = TransformAction(env, self, self.space)
        by_number.default_action = self.nearest(default_action(env))
        return by_number  # type: ignore[no-any-return]
