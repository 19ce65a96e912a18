"""Waiting for what happens elsewhere: with a deadline for what hangs, and never for a fixed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "the condition", within_s: float = 60.0) -> T:
    """Poll until `condition` returns something true, and return that; an AssertionError if it does not in time."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {within_s:g} s"
        time.sleep(0.005)
    return found
