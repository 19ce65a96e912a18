"""Any Gymnasium environment as a tmrl_like environment."""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.envs.actions import default_action, typed_action
from tmrl_like.errors import ConfigError, EnvironmentFaultError

_RTGYM_ENDS_WITHIN_S = 1.0

_FLOATS = (float, np.float32, np.float64, np.float16)

RTGYM_IDS = ("real-time-gym-v1", "real-time-gym-ts-v1")


class Float32Env(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wraps an environment: float64 observations become float32, rewards floats (numpy's stay), ends of episodes bools.

    Attributes:
        default_action: of a reset: the environment's own, or a neutral one (zeros, where the space has them).
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._converts = any(space.dtype == np.float64 for space in tree.leaves(env.observation_space))
        if self._converts:
            self.observation_space = _space_to_float32(env.observation_space)
        self.default_action = typed_action(default_action(env), env.action_space)

    @property
    def time_step_s(self) -> float | None:
        """Nominal duration of a time-step in seconds; None where the environment does not run in real time."""
        duration = getattr(self.env.unwrapped, "time_step_duration", None)
        return float(duration) if duration else None

    @property
    def overrun_after_s(self) -> float | None:
        """A step that takes at least this long broke its deadline; None where there is none."""
        if self.time_step_s is None:
            return None
        return self.time_step_s * (1.0 + float(getattr(self.env.unwrapped, "time_step_timeout_factor", 1.0)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._convert(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do one step; see `gymnasium.Env.step`.

        Raises:
            EnvironmentFaultError: the reward is not a number.
        """
        obs, rew, terminated, truncated, info = self.env.step(action)
        if type(rew) not in _FLOATS:
            if not isinstance(rew, int | np.number | np.bool_ | np.ndarray) or np.ndim(rew):
                raise EnvironmentFaultError(f"the environment's reward is {rew!r:.80}; expected a number")
            rew = float(rew)
        return self._convert(obs), rew, bool(terminated), bool(truncated), {} if info is None else info

    def _convert(self, obs: Any) -> Any:
        return tree.map_leaves(_to_float32, obs) if self._converts else obs


class GenericGymEnv(Float32Env):
    """Wraps a registered Gymnasium environment.

    float64 observations become float32. The interface of an rtgym environment is guarded: where rtgym
    would block for ever after an exception in the interface, `step` and `reset` raise
    EnvironmentFaultError with the cause.
    """

    def __init__(self, id: str = "Pendulum-v1", gym_kwargs: dict[str, Any] | None = None) -> None:
        """Make the environment.

        Args:
            id: "real-time-gym-ts-v1", "Pendulum-v1", …
            gym_kwargs: keyword arguments for `gymnasium.make`; for rtgym {"config": rtgym's dictionary}.

        Raises:
            ConfigError: no environment of that id, or it does not take these arguments.
            EnvironmentFaultError: the environment raised while it was made.
        """
        kwargs = dict(gym_kwargs or {})
        self._guard = None
        if id in RTGYM_IDS and "config" in kwargs:
            from tmrl_like.envs.guard import guard_interface

            kwargs["config"], self._guard = guard_interface(kwargs["config"])
        try:
            super().__init__(_make(id, kwargs))
            self._raise_fault()
            self.moves_hardware = getattr(self._guard and self._guard.interface, "moves_hardware", False)
        except BaseException:
            if "env" in vars(self):
                self._end_rtgym_thread()
            self._close_interface()
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see `gymnasium.Env.reset`."""
        obs, info = super().reset(seed=seed, options=options)
        self._raise_fault()
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do one step; see `gymnasium.Env.step`.

        Raises:
            EnvironmentFaultError: the reward is not a number; the interface raised.
        """
        result = super().step(action)
        self._raise_fault()
        return result

    def close(self) -> None:
        """Close the environment, and an rtgym interface that has a `close` method; ends rtgym's thread."""
        try:
            super().close()
        finally:
            self._end_rtgym_thread()
            self._close_interface()

    def _close_interface(self) -> None:
        interface = self._guard.interface if self._guard else None
        if interface is not None and hasattr(interface, "close"):
            interface.close()

    def _end_rtgym_thread(self) -> None:
        """Let rtgym's thread end after its step. rtgym would do so only when the interpreter ends."""
        end = getattr(self.env.unwrapped, "__del__", None)
        if self._guard is not None and end is not None:
            thread = threading.Thread(target=end, name="tmrl-rtgym-end", daemon=True)
            thread.start()
            thread.join(_RTGYM_ENDS_WITHIN_S)

    def _raise_fault(self) -> None:
        if self._guard is not None:
            self._guard.raise_if_any()


def _make(id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    if id in RTGYM_IDS:
        import rtgym  # noqa: F401 - registers the ids
    try:
        return gymnasium.make(id, disable_env_checker=True, **kwargs)
    except gymnasium.error.Error as error:
        raise ConfigError(f"no environment {id!r}: {error}") from None
    except TypeError as error:
        raise ConfigError(f"environment {id!r} does not take these arguments: {error}") from None
    except Exception as error:
        raise EnvironmentFaultError(f"environment {id!r} raised while it was made: {error}") from error


def _space_to_float32(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_space_to_float32(s) for s in space.spaces])
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _space_to_float32(s) for key, s in space.spaces.items()})
    if isinstance(space, spaces.Box) and space.dtype == np.float64:
        return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return space


def _to_float32(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.astype(np.float32) if value.dtype == np.float64 else value
    return np.float32(value) if isinstance(value, float) else value
