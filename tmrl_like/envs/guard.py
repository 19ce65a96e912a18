"""Guards around a user's rtgym interface.

rtgym calls the interface from a thread of its own. An exception there ends that thread, and whoever
waits for the next observation waits for ever. The guard catches it, ends the episode, and hands the
exception to the environment's caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from rtgym import RealTimeGymInterface

from tmrl_like.base.functional import place_of
from tmrl_like.base.text import one_line
from tmrl_like.envs.actions import typed_action
from tmrl_like.errors import ConfigError, EnvironmentFaultError, TmrlLikeError


class FaultBox:
    """Where the guard leaves what the interface raised, for the thread that steps the environment."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.where = ""
        self.interface: Any = None

    def put(self, where: str, error: BaseException) -> None:
        """Keep the first error since the last `raise_if_any`."""
        if self.error is None:
            self.where, self.error = where, error

    def raise_if_any(self) -> None:
        """Raise what the interface raised, in the caller's thread.

        Raises:
            EnvironmentFaultError: caused by the interface's own exception.
            TmrlLikeError: what the interface raised, if it was one.
        """
        error, self.error = self.error, None
        if isinstance(error, TmrlLikeError):
            raise error
        if error is not None:
            what = f"{one_line(error)}{place_of(error)}"
            raise EnvironmentFaultError(f"the environment's interface raised in {self.where}(): {what}") from error


def guard_interface(config: dict[str, Any]) -> tuple[dict[str, Any], FaultBox]:
    """Return a copy of an rtgym configuration whose interface is guarded, and the box of its faults.

    Raises:
        ConfigError: there is no interface, or a number with which rtgym would fail later, or never come back.
    """
    if not callable(config.get("interface")):
        raise ConfigError(f"rtgym's config: interface is {config.get('interface')!r}; expected the interface's class")
    for name, default in (("time_step_duration", 0.0), ("start_obs_capture", 0.0), ("time_step_timeout_factor", 1.0)):
        if not 0 <= config.get(name, default) < math.inf:
            raise ConfigError(f"{name} is {config[name]}; it must be finite and not negative")
    for name in ("act_buf_len", "ep_max_length"):
        if not config.get(name, 1) >= 1:
            raise ConfigError(f"{name} is {config[name]}; rtgym needs 1 or more")
    box = FaultBox()
    arguments = (config["interface"], config.get("interface_args") or (), config.get("interface_kwargs") or {}, box)
    return {**config, "interface": GuardedInterface, "interface_args": arguments, "interface_kwargs": {}}, box


class GuardedInterface(RealTimeGymInterface):  # type: ignore[misc]
    """Stands in front of a user's interface: same calls, but none of them raises."""

    def __init__(
        self, interface_cls: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], box: FaultBox
    ) -> None:
        self._box = box
        self._inner: Any = None
        self._last_obs: list[Any] | None = None
        self._space: gymnasium.Space[Any] | None = None
        try:
            self._inner = interface_cls(*args, **kwargs)
            box.interface = self._inner
        except Exception as error:
            box.put("__init__", error)

    def send_control(self, control: Any) -> None:
        self._call("send_control", None, 0, control)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        obs, info = self._call("reset", (None, {}), 2, seed=seed, options=options)
        return self._remember(obs), info

    def wait(self) -> None:
        self._call("wait", None)

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], Any, bool, dict[str, Any]]:
        if self._box.error is not None:
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
        return self._inner.render()

    def _call(self, name: str, otherwise: Any, items: int = 0, *args: Any, **kwargs: Any) -> Any:
        """Call the interface; where it returns several `items`, check their number and that obs is a sequence."""
        if self._inner is None:
            return otherwise
        try:
            result = getattr(self._inner, name)(*args, **kwargs)
            if items and len(result) != items:
                raise ValueError(f"it returned {len(result)} items where rtgym expects {items}")
            return (list(result[0]), *result[1:]) if items else result
        except Exception as error:
            self._box.put(name, error)
            return otherwise

    def _remember(self, obs: Any) -> list[Any]:
        """Keep the newest observation; without one, repeat the last (or any) to end the episode with."""
        if obs is not None:
            self._last_obs = list(obs)
        elif self._last_obs is None:
            self._last_obs = [space.sample() for space in getattr(self._space, "spaces", ())]
        return self._last_obs
