"""Guards around a user's rtgym interface.

rtgym calls the interface from a thread of its own. An exception there ends that thread, and whoever
waits for the next observation waits for ever. The guard catches it, ends the episode, and hands the
exception to the environment's caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import gymnasium
import numpy as np
from rtgym import RealTimeGymInterface

from tmrl_like.base.functional import place_of
from tmrl_like.base.text import one_line
from tmrl_like.envs.actions import typed_action
from tmrl_like.errors import ConfigError, EnvironmentFaultError, TmrlLikeError


def check_rtgym_config(config: dict[str, Any]) -> None:
    """Raise ConfigError where there is no interface, or a number with which rtgym would fail, or never come back."""
    if not callable(config.get("interface")):
        raise ConfigError(f"rtgym's config: interface is {config.get('interface')!r}; expected the interface's class")
    for name in ("time_step_duration", "start_obs_capture", "time_step_timeout_factor", "spin_s"):
        if not 0 <= config.get(name, 0) < math.inf:
            raise ConfigError(f"{name} is {config[name]}; it must be finite and not negative")
    for name in ("act_buf_len", "ep_max_length"):
        if not config.get(name, 1) >= 1:
            raise ConfigError(f"{name} is {config[name]}; rtgym needs 1 or more")


def guard_interface(config: dict[str, Any]) -> tuple[dict[str, Any], GuardedInterface]:
    """Return a copy of an rtgym configuration whose interface is guarded, and the guard; raises as the check."""
    check_rtgym_config(config)
    args, kwargs = config.get("interface_args") or (), config.get("interface_kwargs") or {}
    guard = GuardedInterface(partial(config["interface"], *args, **kwargs))
    return {**config, "interface": guard.start, "interface_args": (), "interface_kwargs": {}}, guard


class GuardedInterface(RealTimeGymInterface):  # type: ignore[misc]
    """Stands in front of a user's interface: same calls, but none of them raises.

    Attributes:
        interface: the user's; None before `start`, or if it could not be made.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.interface: Any = None
        self._error: BaseException | None = None
        self._where = ""
        self._last_obs: list[Any] | None = None
        self._space: gymnasium.Space[Any] | None = None

    def start(self) -> Self:
        """Make the user's interface; stands in rtgym's configuration for its class."""
        try:
            self.interface = self._make()
        except Exception as error:
            self._put("__init__", error)
        return self

    def raise_if_any(self) -> None:
        """Raise what the interface raised first since the last call, in the caller's thread.

        Raises:
            EnvironmentFaultError: caused by the interface's own exception.
            TmrlLikeError: what the interface raised, if it was one.
        """
        error, self._error = self._error, None
        if isinstance(error, TmrlLikeError):
            raise error
        if error is not None:
            what = f"{one_line(error)}{place_of(error)}"
            raise EnvironmentFaultError(f"the environment's interface raised in {self._where}(): {what}") from error

    def _put(self, where: str, error: BaseException) -> None:
        if self._error is None:
            self._where, self._error = where, error

    def send_control(self, control: Any) -> None:
        self._call("send_control", None, 0, control)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        obs, info = self._call("reset", (None, {}), 2, seed=seed, options=options)
        return self._remember(obs), info

    def wait(self) -> None:
        self._call("wait", None)

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], Any, bool, dict[str, Any]]:
        if self._error is not None:
            return self._remember(None), 0.0, True, {}
        obs, rew, terminated, info = self._call("get_obs_rew_terminated_info", (None, 0.0, True, {}), 4)
        return self._remember(obs), rew, terminated, info

    def get_observation_space(self) -> gymnasium.Space[Any]:
        self._space = self._call("get_observation_space", gymnasium.spaces.Tuple(()))
        return self._space

    def get_action_space(self) -> gymnasium.Space[Any]:
        return self._call("get_action_space", gymnasium.spaces.Box(-1.0, 1.0, (1,)))  # type: ignore[no-any-return]

    def get_default_action(self) -> Any:
        return typed_action(self._call("get_default_action", np.zeros(1, np.float32)), self.get_action_space())

    def render(self) -> Any:
        return self.interface.render()

    def _call(self, name: str, otherwise: Any, items: int = 0, *args: Any, **kwargs: Any) -> Any:
        """Call the interface; where it returns several `items`, check their number and that obs is a sequence."""
        if self.interface is None:
            return otherwise
        try:
            result = getattr(self.interface, name)(*args, **kwargs)
            if items and len(result) != items:
                raise ValueError(f"it returned {len(result)} items where rtgym expects {items}")
            return (list(result[0]), *result[1:]) if items else result
        except Exception as error:
            self._put(name, error)
            return otherwise

    def _remember(self, obs: Any) -> list[Any]:
        """Keep the newest observation; without one, repeat the last (or any) to end the episode with."""
        if obs is not None:
            self._last_obs = list(obs)
        elif self._last_obs is None:
            self._last_obs = [space.sample() for space in getattr(self._space, "spaces", ())]
        return self._last_obs
