"""An rtgym interface as an environment with a clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from rtgym import DEFAULT_CONFIG_DICT

from tmrl_like.envs.generic import GenericGymEnv

_Init = TypeVar("_Init", bound=Callable[..., None])


def also_takes(interface_cls: type) -> Callable[[_Init], _Init]:
    """Decorate a constructor whose `**arguments` are those of `interface_cls`, so that its signature shows them.

    Experiments are checked against signatures, and pages of the documentation are made from them.
    """

    def decorate(init: _Init) -> _Init:
        own = [p for p in _parameters(init) if p.kind is not p.VAR_KEYWORD]
        theirs = [p.replace(kind=p.KEYWORD_ONLY) for p in _parameters(interface_cls)]
        init.__signature__ = inspect.Signature([*own, *theirs])  # type: ignore[attr-defined]
        return init

    return decorate


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


class RealTimeEnv(GenericGymEnv):
    """An rtgym interface in real time, with the last `act_buf_len` actions in its observation.

    A step is an overrun when it takes more than two time-steps. By default each reset also resets the
    action buffer.
    """

    def __init__(
        self,
        interface: Callable[[], Any],
        time_step_duration: float = 0.05,
        ep_max_length: int = 1000,
        act_buf_len: int = 2,
        start_obs_capture: float | None = None,
        wait_on_done: bool = True,
        reset_act_buf: bool = True,
    ) -> None:
        """Make the interface, and the environment around it.

        Args:
            interface: makes the interface without further arguments: its class, or a `partial` of it.
            time_step_duration: seconds between two decisions.
            ep_max_length: steps.
            act_buf_len: past actions in the observation; they should cover the delay.
            start_obs_capture: seconds into a time-step at which the observation is taken; None: at its end.
            wait_on_done: call the interface's `wait` at the end of an episode, and stop the clock until the reset.
            reset_act_buf: fill the action buffer with default actions at each reset.

        Raises:
            ConfigError: a number that makes no sense.
            EnvironmentFaultError: the interface raised.
        """
        config = {
            "interface": interface,
            "time_step_duration": time_step_duration,
            "start_obs_capture": time_step_duration if start_obs_capture is None else start_obs_capture,
            "time_step_timeout_factor": 1.0,
            "ep_max_length": ep_max_length,
            "act_buf_len": act_buf_len,
            "wait_on_done": wait_on_done,
            "reset_act_buf": reset_act_buf,
        }
        super().__init__("real-time-gym-ts-v1", {"config": DEFAULT_CONFIG_DICT | config})
