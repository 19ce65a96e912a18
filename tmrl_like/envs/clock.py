"""Waits for deadlines as exactly as an ordinary process can."""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN_S = 0.2e-3
_MAX_SPIN_SHARE = 0.25  # of a time-step
_CARE = 1.2  # so much more time is left for a call than it is expected to take
_FORGETS = 0.01  # each time: of the difference between what was expected and what was shorter


class Clock:
    """Sleeps until shortly before a deadline, and looks at the time without a pause for the rest of
    the wait.

    A sleep comes back late by what the machine's timers and its other work make of it. How late is
    measured with each wait, and the next sleep ends that much sooner, but never more than
    `max_spin_s`. What is to be done `while_waiting` has a part of that time.

    Attributes:
        max_spin_s: seconds of a wait, at most, in which it computes instead of sleeping; 0: it only
            sleeps.
        now: returns seconds, `time.perf_counter`.
    """

    def __init__(
        self,
        max_spin_s: float,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Set up; a test gives `now` and `sleep` of a time of its own."""
        self.max_spin_s = max_spin_s
        self.now = now
        self._sleep = sleep
        self._late_s = 0.0  # by this much sleeps come back late, those that were later than most
        self._call: Callable[[], None] | None = None
        self._call_s = 0.0  # this long the call takes, when it takes longer than mostly

    def while_waiting(self, call: Callable[[], None]) -> None:
        """Have a call made in each wait after the sleep, where it will be back by the deadline, as
        far as can be known.

        For it, sleeps end sooner by as long as it takes, but a wait does not spin for longer than
        `max_spin_s` either.
        """
        self._call = call
        self._call_s = self.max_spin_s / 2

    def wait_until(self, deadline: float) -> None:
        """Come back at `deadline` (as `now` counts), or at once where it has passed."""
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
    """How long something takes that has just taken `newest_s`: what was longer than most is
    forgotten slowly.
    """
    return max(newest_s, expected_s + _FORGETS * (newest_s - expected_s))


def bounded_spin_s(time_step_s: float, spin_s: float = SPIN_S) -> float:
    """For how much of a time-step, at most, a `Clock` may spin: `spin_s`, but never more than a
    quarter of it.
    """
    return min(spin_s, _MAX_SPIN_SHARE * time_step_s)
