"""Sensors that are read at their own rate, so that a slow camera does not hold up a fast arm."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from tmrl_like.base.options import AboveZero, in_ranges
from tmrl_like.base.text import one_line
from tmrl_like.base.threads import start_thread
from tmrl_like.envs.attributes import values_of
from tmrl_like.errors import EnvironmentFaultError

Value = TypeVar("Value")

_CLOSES_WITHIN_S = 0.2


class _Reading(NamedTuple, Generic[Value]):
    value: Value
    at: float  # `time.perf_counter()` when it arrived
    period_s: float  # time since the previous reading; 0 for the first


class Sensor(Generic[Value]):
    """Reads a device in a thread of its own, however long that takes, and keeps its newest value
    ready.

    Getting the value never waits, but for a moment before the sensor counts as silent. If an
    environment or its interface lists its sensors in an attribute `sensors`, its worker's metrics
    include the age of the slowest one's value, and `tmrl-like check` reports how often each one
    reads.

    Attributes:
        name: what error messages call it: "the wrist camera".
        why: what they say of the reason, after that it is silent.
        resumes_within_s: how long `newest` waits before the sensor counts as silent.
    """

    why = ""
    resumes_within_s = 0.25

    @in_ranges
    def __init__(
        self,
        name: str,
        read: Callable[[], Value],
        silent_after_s: AboveZero = 1.0,
        first_within_s: AboveZero = 10.0,
        error: type[EnvironmentFaultError] = EnvironmentFaultError,
    ) -> None:
        """Start reading, and wait for the first value.

        Args:
            name: name of the device.
            read: waits for the next value and returns it: a new object each time, which is not
                changed afterwards.
            silent_after_s: seconds without a new value after which the sensor is silent, which is a
                fault of the environment.
            first_within_s: seconds within which the first value must arrive.
            error: the class of what is raised here and by `newest`.

        Raises:
            EnvironmentFaultError: no value arrived in time, or `read` raised.
        """
        self.name, self._error = name, error
        self._read, self._silent_after_s = read, silent_after_s
        self._newest: _Reading[Value] | None = None
        self._failure: Exception | None = None
        self._is_over = False
        self._has_said = threading.Event()  # there is a value, or a failure
        self._thread = start_thread(self._run, "tmrl-sensor")
        if not self._has_said.wait(first_within_s):
            self.close()
            raise error(f"{name} gave no value within {first_within_s:g} s of its start{self.why}")
        if self._failure is not None:
            self.newest()

    def newest(self) -> Value:
        """Return the newest value.

        Raises:
            EnvironmentFaultError: `read` raised, or has returned nothing for `silent_after_s`.
        """
        if self._failure is None and self.age_s > self._silent_after_s:
            # perhaps this whole process was suspended, and the next value is there already
            self._has_said.clear()
            self._has_said.wait(self.resumes_within_s)
        failure = self._failure
        if failure is not None:
            raise self._error(f"{self.name} cannot be read: {one_line(failure)}") from failure
        age_s = self.age_s
        if age_s > self._silent_after_s:
            raise self._error(f"{self.name} has been silent for {age_s:.1f} s{self.why}")
        assert self._newest is not None
        return self._newest.value

    @property
    def age_s(self) -> float:
        """Seconds since the newest value arrived; for `info` or an observation."""
        assert self._newest is not None
        return time.perf_counter() - self._newest.at

    @property
    def period_s(self) -> float:
        """Seconds between the two newest values; while there is only one, its age."""
        assert self._newest is not None
        return self._newest.period_s or self.age_s

    def close(self) -> None:
        """Stop reading; a thread that hangs in `read` is left there. Calling it twice is fine."""
        self._is_over = True
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSES_WITHIN_S)

    def _run(self) -> None:
        while not self._is_over:
            before = self._newest
            try:
                value = self._read()
                if before is not None:
                    _refuse_again(value, before.value)
            except Exception as error:
                self._failure = error
                self._has_said.set()
                return
            now = time.perf_counter()
            self._newest = _Reading(value, now, 0.0 if before is None else now - before.at)
            self._has_said.set()


def _refuse_again(value: object, before: object) -> None:
    if value is before and isinstance(value, np.ndarray | list | dict | bytearray):
        raise TypeError(
            f"read returned the same {type(value).__name__} again; expected a function that waits "
            "for the next value, and returns a new object each time"
        )


def sensors_of(env: Any) -> Sequence[Sensor[Any]]:
    """Return the sensors that an environment or its interface lists in an attribute `sensors`;
    anything else in such an attribute does not count.
    """
    for listed in values_of(env, "sensors"):
        items = listed if isinstance(listed, Iterable) else ()
        if sensors := tuple(item for item in items if isinstance(item, Sensor)):
            return sensors
    return ()
