"""Numbers that follow a schedule while training goes on."""

from __future__ import annotations

import functools
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tmrl_like.base.factories import taken_apart
from tmrl_like.errors import expect


@dataclass(frozen=True)
class ValueSchedule:
    """A number by how far training has come.

    Before the first point and behind the last one it is theirs. Between two, (x0, y0) and (x1, y1), with
    s = (x - x0) / (x1 - x0):

        constant       y0
        linear         y0 + s (y1 - y0)
        exponential    y0 (y1 / y0)^s

    Attributes:
        points: what it is at which count of frames or training steps.
        between: what it is between two points.
        over: what is counted: frames, which are samples received (a data set's included), or training_steps.
    """

    points: dict[int, float]
    between: Literal["constant", "linear", "exponential"] = "linear"
    over: Literal["frames", "training_steps"] = "frames"

    def __post_init__(self) -> None:
        expect(bool(self.points) and min(self.points) >= 0, "points", self.points, "a number at each count, 0 or more")
        expect(all(map(math.isfinite, self.points.values())), "points", self.points, "finite numbers")
        kinds = ("constant", "linear", "exponential")
        expect(self.between in kinds, "between", self.between, "constant, linear or exponential")
        fine = self.between != "exponential" or min(self.points.values()) > 0
        expect(fine, "points", self.points, "numbers above 0 with between: exponential")
        expect(self.over in ("frames", "training_steps"), "over", self.over, "frames or training_steps")

    def at(self, frames: int, training_steps: int) -> float:
        """The number after so many of each."""
        x = frames if self.over == "frames" else training_steps
        counts = sorted(self.points)
        i = bisect_right(counts, x)
        y0, y1 = self.points[counts[max(0, i - 1)]], self.points[counts[min(i, len(counts) - 1)]]
        if i in (0, len(counts)) or self.between == "constant":
            return y0
        share = (x - counts[i - 1]) / (counts[i] - counts[i - 1])
        return y0 + share * (y1 - y0) if self.between == "linear" else y0 * (y1 / y0) ** share

    def __str__(self) -> str:
        points = ", ".join(f"{count}: {self.points[count]:g}" for count in sorted(self.points))
        return f"{{{points}}} ({self.between}, over {self.over})"


def value_at(value: Any, frames: int = 0, training_steps: int = 0) -> Any:
    """What a schedule says; a value that is none is as it is."""
    return value.at(frames, training_steps) if isinstance(value, ValueSchedule) else value


def at_the_start(factory: Callable[..., Any]) -> Callable[..., Any]:
    """The factory with what schedules among its arguments, and those of factories there, say at the beginning."""
    target, given = taken_apart(factory)
    then = {name: at_the_start(v) if isinstance(v, functools.partial) else value_at(v) for name, v in given.items()}
    return factory if all(then[name] is given[name] for name in given) else functools.partial(target, **then)


def as_plain(value: Any) -> Any:
    """A schedule as keys with values, a number of numpy or torch as Python's, anything else as it is."""
    if isinstance(value, ValueSchedule):
        return asdict(value) | {"points": {int(count): float(number) for count, number in value.points.items()}}
    return value.item() if hasattr(value, "item") else value


def from_plain(value: Any) -> Any:
    """What `as_plain` was given."""
    return ValueSchedule(**value) if isinstance(value, dict) else value
