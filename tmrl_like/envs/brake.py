"""A brake that stops what an environment moves, once, when a thread notices that nobody drives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

from tmrl_like.base.processes import ProcessGuard
from tmrl_like.base.text import one_line
from tmrl_like.envs.attributes import attribute_of, values_of
from tmrl_like.envs.control_thread import ControlThread
from tmrl_like.errors import ConfigError, expect

log = logging.getLogger("tmrl_like.envs")

STOPS_WITHIN_S = 1.0  # `pull` waits no longer than this


class Brake:
    """Calls an environment's `stop()`, once after each reset, in a thread of its own.

    `stop` may be called at any time, even while another thread is in `step` or `reset` and hangs
    there. It must not wait for that thread, and nothing may move after it until the next reset
    begins.

    An environment with a `stop` that another process can stop as well declares this, when it is
    made, in an attribute `stop_from_outside`: the import path of a function, and its arguments
    (text, numbers). The guard's process makes that call if this process ends without a `stop`, for
    instance because it was killed.

    Attributes:
        exists: whether the environment has a `stop`.
        is_on: whether what moved was stopped and no reset has begun since.
    """

    def __init__(self, env: Any, guard: ProcessGuard, stopping: threading.Event) -> None:
        """Set up the brake of an environment that has not moved yet; while `stopping` is set, no
        reset may begin.

        Raises:
            ConfigError: its `stop` is no method, or it has a `stop_from_outside` but no `stop`.
        """
        # False is a flag of the environment's own
        found = [stop for stop in values_of(env, "stop") if stop]
        stop = next(filter(callable, found), None)
        expect(
            stop is not None or not found, "the environment's stop", found and found[0], "a method"
        )
        self.exists = stop is not None
        self._stop: Callable[[], object] = stop or int
        self._release: Callable[[], object] = attribute_of(env, "release_stop") or int
        self._from_outside = attribute_of(env, "stop_from_outside")
        if self._from_outside and not self.exists:
            raise ConfigError(
                "the environment has stop_from_outside, which stops it if this process dies, but "
                "no stop, which stops it otherwise: give it a method stop()"
            )
        self._guard, self._stopping = guard, stopping
        self._moves = self.is_on = False
        self._lock = threading.Lock()
        if self.exists:
            self._thread = ControlThread("tmrl-brake")

    def release(self) -> bool:
        """Release the brake for a reset, so that the next `pull` stops what moves. Return False if
        the reset must not begin.
        """
        if self.exists:
            with self._lock:
                self._guard.call_at_end(self._from_outside)  # at first it starts its process
                if self._stopping.is_set():
                    return False
                self._release()
                self._moves, self.is_on = True, False
        return True

    def pull_soon(self) -> None:
        """Do as `pull`, but without waiting. A signal handler may call it."""
        if self.exists:
            self._thread.submit(self._stop_once)

    def pull(self) -> None:
        """Stop what moves, unless that is done already. Return when it has stopped, or when `stop`
        has hung for a second.
        """
        if not self.exists or self._thread.is_left:
            return
        if wait([self._thread.submit(self._stop_once)], STOPS_WITHIN_S).not_done:
            log.error(
                "the environment's stop() has not come back for %g s: what it stops may still move",
                STOPS_WITHIN_S,
            )

    def _stop_once(self) -> None:
        with self._lock:
            if not self._moves:
                return
            self._moves, self.is_on = False, True
        try:
            self._stop()
            with self._lock:
                # no reset has begun meanwhile, here or in an environment that was made after this
                if not self._moves and not self._thread.is_left:
                    self._guard.call_at_end(None)
        except (Exception, SystemExit) as error:
            log.error("the environment's stop() failed: %s", one_line(error))

    def close(self) -> None:
        """Pull the brake, and end its thread. Calling it twice is fine."""
        self.pull()
        if self.exists:
            self._thread.leave()
