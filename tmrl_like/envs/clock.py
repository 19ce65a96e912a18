"""Waits for deadlines as exactly as an ordinary process can."""

from __future__ import annotations

import time
from collections.abc import Callable

SPIN_S = 0.2e-3
_MAX_SPIN_SHARE = 0.25  # of a time-step
_FORGETS = 0.01  # per wait: of the difference between what was expected and a sleep that came back sooner


class Clock:
    """Sleeps until shortly before a deadline, and looks at the time without a pause for the rest of the wait.

    A sleep comes back late by what the machine's timers and its other work make of it. How late is measured with each
    wait, and the next sleep ends that much sooner, but never more than `max_spin_s`.

    Attributes:
        max_spin_s: seconds of a wait, at most, in which it computes instead of sleeping; 0: it only sleeps.
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

    def wait_until(self, deadline: float) -> None:
        """Come back at `deadline` (as `now` counts), or at once where it has passed."""
        now = self.now()
        wake_at = deadline - min(self._late_s, self.max_spin_s)
        if now < wake_at:
            self._sleep(wake_at - now)
            now = self.now()
            late_s = min(now - wake_at, self.max_spin_s)
            self._late_s = max(late_s, self._late_s + _FORGETS * (late_s - self._late_s))
        while now < deadline:
            now = self.now()


def bounded_spin_s(time_step_s: float, spin_s: float = SPIN_S) -> float:
    """For how much of a time-step, at most, a `Clock` may spin: `spin_s`, but never more than a quarter of it."""
    return min(spin_s, _MAX_SPIN_SHARE * time_step_s)
