"""Any Gymnasium environment as a tmrl_like environment."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium

from tmrl_like.base.factories import said_by_rtgym
from tmrl_like.base.functional import place_of
from tmrl_like.envs.float32 import Float32Env
from tmrl_like.envs.real_time import ClockedGym
from tmrl_like.errors import ConfigError

_RTGYM_IDS = ("real-time-gym-v1", "real-time-gym-ts-v1")


class GenericGymEnv(Float32Env):
    """Wraps a registered Gymnasium environment; float64 observations become float32.

    For rtgym's ids it makes a `ClockedGym`, which behaves like rtgym's environments but runs in the
    calling thread.
    """

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know; see `RealTimeEnv.memory_arguments`."""
        if arguments["id"] not in _RTGYM_IDS:
            return {}
        return said_by_rtgym((arguments["gym_kwargs"] or {}).get("config"))

    def __init__(self, id: str = "Pendulum-v1", gym_kwargs: dict[str, Any] | None = None) -> None:
        """Make the environment.

        Args:
            id: "real-time-gym-ts-v1", "Pendulum-v1", …
            gym_kwargs: keyword arguments for `gymnasium.make`; for rtgym {"config": rtgym's
                dictionary}.

        Raises:
            ConfigError: there is no environment with that id, or it does not take these arguments.
        """
        make = (
            ClockedGym
            if id in _RTGYM_IDS
            else partial(gymnasium.make, id, disable_env_checker=True)
        )
        try:
            env: gymnasium.Env[Any, Any] = make(**(gym_kwargs or {}))
        except gymnasium.error.Error as error:
            raise ConfigError(f"no environment {id!r}: {error}") from None
        except TypeError as error:
            place = place_of(error.__cause__ or error)  # gymnasium raises it anew
            raise ConfigError(
                f"environment {id!r} cannot be made with these arguments: {error}{place}"
            ) from None
        super().__init__(env)
