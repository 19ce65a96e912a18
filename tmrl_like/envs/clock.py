"""A clock that waits for deadlines as exactly as an ordinary process can."""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN_S = 0.2e-3
MAX_SPIN_SHARE = 0.25  # of a time-step
_CARE = 1.2  # time kept free for a call, relative to its expected duration
_FORGETS = 0.01  # share by which the expected duration moves towards each shorter one


class Clock:
    """Sleeps until shortly before a deadline, and polls the time for the rest of the wait.

    A sleep ends late, by an amount that depends on the machine's timers and load. Each wait
    measures it, and the next sleep ends that much sooner, but never more than `max_spin_s` before
    the deadline. What is to be done `while_waiting` takes a part of that time.

    Attributes:
        max_spin_s: the most seconds of a wait to spend computing instead of sleeping; 0 to only
            sleep.
        now: returns the time in seconds, as `time.perf_counter` does.
    """

    def __init__(
        self,
        max_spin_s: float,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set up the clock; a test passes the `now` and `sleep` of a simulated time."""
        self.max_spin_s = max_spin_s
        self.now = now
        self._sleep = sleep
        self._late_s = 0.0  # expected lateness of a sleep; few are later
        self._call: Callable[[], None] | None = None
        self._call_s = 0.0  # expected duration of the call; few take longer

    def while_waiting(self, call: Callable[[], None]) -> None:
        """Run `call` in each wait, after the sleep, if it is expected to return by the deadline.

        Sleeps end sooner by its expected duration, but call and spinning together still take no
        more than `max_spin_s` of a wait.
        """
        self._call = call
        self._call_s = self.max_spin_s / 2

    def wait_until(self, deadline: float) -> None:
        """Return at `deadline` (in the time of `now`), or at once if it has passed."""
        now = self.now()
        wake_at = deadline - min(self._late_s + _CARE * self._call_s, self.max_spin_s)
        if now < wake_at:
            self._sleep(wake_at - now)
            now = self.now()
            self._late_s = _expected(self._late_s, min(now - wake_at, self.max_spin_s))
            if self._call is not None and now + self._call_s < deadline:
                called_at = now
                self._call()
                now = self.now()
                self._call_s = _expected(self._call_s, min(now - called_at, self.max_spin_s / 2))
        while now < deadline:
            now = self.now()


def _expected(expected_s: float, newest_s: float) -> float:
    """Return the expected duration of something that has just taken `newest_s`; long durations are
    forgotten slowly.
    """
    return max(newest_s, expected_s + _FORGETS * (newest_s - expected_s))
