"""Clocks that do not jump when the machine's clock is set."""

from __future__ import annotations

import time


def up_s() -> float:
    """Return the seconds since a fixed moment, such as the machine's start.

    The moment is the same for all processes of this machine. Time during which the machine sleeps
    counts.
    """
    if hasattr(time, "clock_gettime"):
        return time.clock_gettime(_CLOCK)
    return time.perf_counter()


_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
EPOCH_S = time.time() - up_s()
"""The Unix time at which `up_s` was 0, by this machine's clock when this process started."""


def unix_s() -> float:
    """Return the Unix time, by this machine's clock when this process started and by `up_s` since
    then.
    """
    return EPOCH_S + up_s()
