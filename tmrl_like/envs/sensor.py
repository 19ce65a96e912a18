"""Sensors at their own rate: a slow camera does not hold up a fast arm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from tmrl_like.base.options import AboveZero, in_ranges
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.errors import EnvironmentFaultError

Value = TypeVar("Value")

_CLOSES_WITHIN_S = 0.2


class _Reading(NamedTuple, Generic[Value]):
    value: Value
    at: float  # `time.perf_counter()` when it was there
    period_s: float  # since the one before; 0: there was none


class Sensor(Generic[Value]):
    """Reads a device in a thread of its own, however long that takes, and has its newest value
    ready.

    Who asks never waits. An environment, or its interface, that has its sensors in an attribute
    `sensors` has the age of the slowest one's value among the metrics of its worker, and `tmrl-like
    check` say how often each one reads.

    Attributes:
        name: for what goes wrong with it: "the wrist camera".
    """

    @in_ranges
    def __init__(
        self,
        name: str,
        read: Callable[[], Value],
        silent_after_s: AboveZero = 1.0,
        first_within_s: AboveZero = 10.0,
    ) -> None:
        """Begin to read, and wait for the first value.

        Args:
            name: of the device.
            read: waits for the next value, and returns it: a new one each time, which nobody
                changes.
            silent_after_s: without a new value for so long it is silent, which is a fault of the
                environment.
            first_within_s: the first value is there after so long.

        Raises:
            EnvironmentFaultError: it is not, or `read` raised.
        """
        self.name = name
        self._read, self._silent_after_s = read, silent_after_s
        self._newest: _Reading[Value] | None = None
        self._failure: Exception | None = None
        self._is_over = False
        self._has_said = threading.Event()  # there is a value, or a failure
        self._thread = start_thread(self._run, "tmrl-sensor")
        if not self._has_said.wait(first_within_s):
            self.close()
            raise EnvironmentFaultError(
                f"{name} gave no value within {first_within_s:g} s of its start"
            )
        if self._failure is not None:
            self.newest()

    def newest(self) -> Value:
        """The newest value; does not wait.

        Raises:
            EnvironmentFaultError: `read` raised, or has given nothing for `silent_after_s`.
        """
        failure = self._failure
        if failure is not None:
            raise EnvironmentFaultError(
                f"{self.name} cannot be read: {one_line(failure)}"
            ) from failure
        age_s = self.age_s
        if age_s > self._silent_after_s:
            raise EnvironmentFaultError(f"{self.name} has been silent for {age_s:.1f} s")
        assert self._newest is not None
        return self._newest.value

    @property
    def age_s(self) -> float:
        """Seconds since the newest value was there; for `info`, and for an observation."""
        assert self._newest is not None
        return time.perf_counter() - self._newest.at

    @property
    def period_s(self) -> float:
        """Seconds between the two newest values; of the first one how long it has been the
        newest.
        """
        assert self._newest is not None
        return self._newest.period_s or self.age_s

    def close(self) -> None:
        """Read no more; who is in `read` is left there. Twice is fine."""
        self._is_over = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSES_WITHIN_S)

    def _run(self) -> None:
        while not self._is_over:
            try:
                value = self._read()
            except Exception as error:
                self._failure = error
                self._has_said.set()
                return
            now, before = time.perf_counter(), self._newest
            self._newest = _Reading(value, now, 0.0 if before is None else now - before.at)
            self._has_said.set()


def sensors_of(env: Any) -> Sequence[Sensor[Any]]:
    """Those that an environment or its interface has in an attribute `sensors`."""
    inner = getattr(env, "unwrapped", env)
    for part in (inner, getattr(inner, "interface", None)):
        if sensors := getattr(part, "sensors", ()):
            return tuple(sensors)
    return ()
