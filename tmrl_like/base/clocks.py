"""Time that does not jump when somebody sets the machine's clock."""

from __future__ import annotations

import time


def up_s() -> float:
    """Seconds since some moment before this machine's programs began, the same in all of them;
    sleep counts.
    """
    if hasattr(time, "clock_gettime"):
        return time.clock_gettime(_CLOCK)
    return time.perf_counter()


_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
EPOCH_S = time.time() - up_s()
"""Unix time at which `up_s` was 0, by this machine's clock when this process began."""


def unix_s() -> float:
    """Unix time by this machine's clock when this process began, and from there on by `up_s`."""
    return EPOCH_S + up_s()
