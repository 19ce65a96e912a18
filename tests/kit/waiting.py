"""Waiting for events elsewhere: until a deadline at most, never for a fixed time."""

import time


def until(condition, what="the condition", within_s=60.0):
    """Poll until `condition` returns something true, and return that.

    Raises:
        AssertionError: that has not happened within `within_s`.
    """
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not come true within {within_s:g} s"
        time.sleep(0.005)
    return found
