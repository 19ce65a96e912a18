"""Keeps a user's environment running: faults become one exception, hangs are told, what broke is built anew."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from tmrl_like.envs.generic import neutral_action
from tmrl_like.errors import EnvironmentFaultError

log = logging.getLogger("tmrl_like.worker")

_HANG_CHECK_S = 1.0
_MAX_FAULTS_IN_A_ROW = 5
_FIRST_BACKOFF_S = 0.5
_MAX_BACKOFF_S = 10.0


class SupervisedEnv:
    """An environment with a watchdog, which can be made again.

    Attributes:
        env: the environment now; another one after `rebuild`.
        time_step_s: nominal duration of a time-step; 0 where the environment does not run in real time.
        overrun_after_s: a period that long broke its deadline; infinite where there is none.
        carries_history: its action buffer lives through resets, and so through episodes nobody stores.
    """

    def __init__(
        self, make_env: Callable[[], Any], hang_timeout_s: float = 30.0, on_hang: Callable[[str], None] | None = None
    ) -> None:
        """Make the environment.

        Args:
            make_env: makes it, now and after each fault.
            hang_timeout_s: a call that takes longer is told as a hang, once.
            on_hang: called with a line about it, from the watchdog's thread.
        """
        self._make_env = make_env
        self._hang_timeout_s = hang_timeout_s
        self._on_hang = on_hang
        self._faults = 0
        self._called_at: float | None = None
        self._closed = False
        self._take(make_env())
        threading.Thread(target=self._watch, name="tmrl-watchdog", daemon=True).start()

    def _take(self, env: Any) -> None:
        self.env = env
        inner = getattr(env, "unwrapped", env)
        time_step_s = getattr(env, "time_step_s", None) or getattr(inner, "time_step_duration", None)
        self.time_step_s = float(time_step_s or 0.0)
        elasticity = 1.0 + float(getattr(inner, "time_step_timeout_factor", 1.0))
        overrun_after_s = getattr(env, "overrun_after_s", None) or self.time_step_s * elasticity
        self.overrun_after_s = 0.99 * overrun_after_s if overrun_after_s else math.inf  # 1 %: the clock's own noise
        self.carries_history = bool(getattr(inner, "act_buf_len", 0)) and not getattr(inner, "reset_act_buf", True)

    @property
    def default_action(self) -> Any:
        """The action of a reset: the environment's own, or a neutral one of its space."""
        action = getattr(self.env, "default_action", None)
        if action is None:
            action = getattr(getattr(self.env, "unwrapped", None), "default_action", None)
        return neutral_action(self.env.action_space) if action is None else action

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """As the environment's.

        Raises:
            EnvironmentFaultError: it raised.
        """
        obs, info = self._call(self.env.reset)
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment's.

        Raises:
            EnvironmentFaultError: it raised.
        """
        obs, rew, terminated, truncated, info = self._call(self.env.step, action)
        return obs, rew, terminated, truncated, info

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        self._called_at = time.monotonic()
        try:
            return call(*args)
        except EnvironmentFaultError:
            raise
        except Exception as error:
            raise EnvironmentFaultError(
                f"the environment raised in {call.__name__}(): {type(error).__name__}: {error}"
            ) from error
        finally:
            self._called_at = None

    def episode_ended_well(self) -> None:
        """Faults before this are forgiven."""
        self._faults = 0

    def rebuild(self, error: EnvironmentFaultError, stopping: threading.Event) -> bool:
        """End what is left of the environment and make a new one, a little later after each fault in a row.

        Args:
            error: what the environment raised.
            stopping: ends the wait.

        Returns:
            False when `stopping` was set; there is no new environment then.

        Raises:
            EnvironmentFaultError: too many faults in a row, or it cannot be made again.
        """
        self._faults += 1
        log.error("%s", error, exc_info=error if self._faults == 1 else None)
        if self._faults >= _MAX_FAULTS_IN_A_ROW:
            raise EnvironmentFaultError(f"{error} ({self._faults} episodes in a row; giving up)") from error
        self._close_env()
        backoff_s = min(_MAX_BACKOFF_S, _FIRST_BACKOFF_S * 2 ** (self._faults - 1))
        log.warning("episode ended as a fault; making the environment anew in %.1f s", backoff_s)
        if stopping.wait(backoff_s):
            return False
        self._take(self._make_env())
        return True

    def close(self) -> None:
        """Close the environment; what it raises is logged. Twice is fine."""
        if not self._closed:
            self._closed = True
            self._close_env()

    def _close_env(self) -> None:
        try:
            self.env.close()
        except Exception as error:
            log.warning("closing the environment failed: %s", error)

    def _watch(self) -> None:
        """Tell, once per call, that the environment does not come back."""
        told: float | None = None
        while not self._closed:
            time.sleep(min(_HANG_CHECK_S, self._hang_timeout_s / 4))
            since = self._called_at
            if since in (None, told) or time.monotonic() - since < self._hang_timeout_s:
                continue
            told = since
            line = (
                f"the environment has not come back from step or reset for {self._hang_timeout_s:.0f} s: its "
                "interface hangs; end this worker and start it again"
            )
            log.critical("%s", line)
            if self._on_hang is not None:
                self._on_hang(line)
