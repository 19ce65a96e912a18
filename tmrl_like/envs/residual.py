"""A wrapper that turns the actions of any environment into corrections of a base controller.

Silver et al., "Residual Policy Learning", 2018 (arXiv:1812.06298), and Johannink et al., "Residual
Reinforcement Learning for Robot Control", 2018 (arXiv:1812.03201). With the base inside, it is an
environment like any other: memories, agents, policies and action chains need not know of the base,
and a trainer never runs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base.factories import instance_or_function, known_from_env
from tmrl_like.envs.actions import held_actions
from tmrl_like.envs.float32 import Float32Env, closed_by_errors
from tmrl_like.errors import EnvironmentFaultError, expect


class ResidualEnv(Float32Env):
    """An environment whose actions are corrections of what a base controller does.

    For each observation o the base chooses an action, and the environment receives
    clip(base(o) + correction).

    A correction is in the unit of the environment's actions, and reaches `scale` times half of
    their range to either side. The default action is no correction: zeros. An observation is
    `(*o, base(o), *corrections)`: the parts of the environment's own observation, whose action
    buffer holds the actions that it received; the base's action for it; and as many of the last
    corrections as there are actions in that buffer. An observation that is not a tuple is one part.
    """

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know; see `RealTimeEnv.memory_arguments`."""
        known = known_from_env(arguments["env"])
        frames = known.get("frame_stack")
        if isinstance(frames, int) and frames:  # of the whole observation, which is one part here
            known["frame_stack"] = {0: frames}
        return known

    def __init__(
        self, env: Callable[[], Any], base: Callable[..., Any], scale: float | Sequence[float] = 0.3
    ) -> None:
        """Make the environment and its base.

        Args:
            env: makes the environment, whose actions must be a Box of floats with bounds.
            base: a function of the environment's observation; or a `Driver` class to instantiate,
                with those of `observation_space`, `action_space` and `default_action` that it
                takes. A method `reset`, if there is one, is called before each episode. The base is
                called in the control loop, once a step, so it must be fast. If it returns None, the
                environment's default action takes its place.
            scale: how far corrections reach, above 0 and up to 2: with 1, half of the range to
                either side; with 2, the whole range from anywhere. One number, or one for each
                component of an action.

        Raises:
            ConfigError: actions are no bounded Box, the scale does not fit, or the base raised
                this.
        """
        super().__init__(env())
        inner, self._rest = self.observation_space, self.default_action
        with closed_by_errors(self.env):
            self._space = space = _bounded(self.env.action_space)
            self.action_space = _corrections(space, scale)
            known = {
                "observation_space": inner,
                "action_space": space,
                "default_action": self._rest,
            }
            self._base, self._wanted = instance_or_function(base, **known), self._rest
        self.default_action = np.zeros(space.shape, space.dtype)
        num_held = held_actions(self.env) or 0
        self._past = deque([self.default_action] * num_held, maxlen=num_held)
        self._is_tuple = isinstance(inner, spaces.Tuple)
        parts = inner.spaces if isinstance(inner, spaces.Tuple) else (inner,)
        self.observation_space = spaces.Tuple((*parts, space, *(self.action_space,) * num_held))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, with past corrections of zero."""
        reset_base = getattr(self._base, "reset", None)
        if reset_base is not None:
            reset_base()
        obs, info = super().reset(seed=seed, options=options)
        self._past.extend([self.default_action] * len(self._past))
        return self._with_base(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment with the base's action for the newest observation, corrected by
        `action`.

        Raises:
            EnvironmentFaultError: the base returned no valid action for the next observation.
        """
        correction = np.array(action, self._space.dtype)
        obs, *results = super().step(
            np.clip(self._wanted + correction, self._space.low, self._space.high)
        )
        self._past.append(correction)
        return self._with_base(obs), *results

    def _with_base(self, obs: Any) -> tuple[Any, ...]:
        """Ask the base, and return an observation with its action and the past corrections."""
        answer = self._base(obs)
        wanted = np.asarray(self._rest if answer is None else answer, self._space.dtype)
        if wanted.shape != self._space.shape or not np.isfinite(wanted).all():
            raise EnvironmentFaultError(
                f"the base gave {answer!r:.80}; expected an action of {self._space}"
            )
        self._wanted = wanted.clip(self._space.low, self._space.high)
        return (*(obs if self._is_tuple else (obs,)), self._wanted, *self._past)

    def close(self) -> None:
        """Close the environment, and the base if it has a `close`."""
        super().close()
        close_base = getattr(self._base, "close", None)
        if close_base is not None:
            close_base()


def _bounded(space: gymnasium.Space[Any]) -> spaces.Box:
    """Return a space of actions; raise ConfigError if it is no Box of floats with bounds."""
    is_box = (
        isinstance(space, spaces.Box)
        and space.is_bounded()
        and np.issubdtype(space.dtype, np.floating)
    )
    expect(is_box, "the space of actions", space, "for a ResidualEnv a Box of floats with bounds")
    assert isinstance(space, spaces.Box)
    return space


def _corrections(space: spaces.Box, scale: float | Sequence[float]) -> spaces.Box:
    """Return the space of corrections; raise ConfigError if the scale does not fit."""
    reach = np.atleast_1d(np.asarray(scale, space.dtype))
    fits = reach.size in (1, np.prod(space.shape)) and bool(((reach > 0) & (reach <= 2)).all())
    expect(fits, "scale", scale, f"more than 0, at most 2: one number, or one for each of {space}")
    reach = reach.reshape(space.shape if reach.size > 1 else ()) * (space.high - space.low) / 2
    return spaces.Box(-reach, reach, space.shape, space.dtype.type)
