"""Filters and limits between the driving policy or driver and the environment, applied in the order
in which a user lists them.

    driver -> filter -> limits -> environment

The output of the chain is what the environment gets, and therefore what the sample, the action
buffer and the memory hold. A part may keep a state within an episode, which learning needs to
observe. With `act_buf_len` 1 the observation holds the newest action, which is the state of
`RateLimit` and of a `OneEuroFilter` whose `beta` is 0; with 2 it also shows the speed, which the
other parts need.

The values of an action are Python floats, in one list that each part changes in place: for the few
numbers of an action, numpy, new lists, `zip` and calls of `min` and `max` all take longer.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from msgspec import Meta
from numpy.typing import NDArray

from tmrl_like.base.options import Positive, in_ranges
from tmrl_like.errors import ConfigError, expect
from tmrl_like.types import EpisodeStats

Values: TypeAlias = list[float]
"""The numbers of an action, flattened, in the unit of the action space."""

PerNumber: TypeAlias = float | Sequence[float]
"""One value for all numbers of an action, or one for each."""

_Hertz = Annotated[float, Meta(gt=0, le=1e6)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)]


@dataclass(frozen=True)
class ActionRange:
    """The range of the actions, and the time from one to the next.

    Attributes:
        rest: the environment's default action, with which an episode begins.
        low: lower bound of each number.
        high: upper bound of each number.
        step_s: seconds from one action to the next.
    """

    rest: Values
    low: Values
    high: Values
    step_s: float

    def each(self, name: str, value: PerNumber) -> Values:
        """Return `value` for each number of an action. Raises ConfigError unless it is one number,
        or as many as an action has.
        """
        num = len(self.rest)
        with contextlib.suppress(ValueError):  # lists of different lengths
            given = np.asarray(value)
            if given.dtype.kind in "fiub" and given.shape in ((), (num,)):
                values: Values = np.broadcast_to(given.astype(np.float64), num).tolist()
                return values
        raise ConfigError(
            f"{name} is {value!r}; expected one number, or {num}, one for each of an action"
        )


class ActionPart:
    """A part of a chain. Subclass it to write your own."""

    def begin(self, actions: ActionRange) -> None:
        """Begin an episode, with the environment at rest."""

    def __call__(self, action: Values) -> None:
        """Transform an action in place."""
        raise NotImplementedError

    def end(self, stats: EpisodeStats) -> None:
        """End an episode, with these statistics."""


class ActionChain:
    """A sequence of parts that an action passes through; the action and the result are clipped to
    the bounds of the action space.
    """

    @in_ranges
    def __init__(self, parts: Sequence[ActionPart], time_step_s: _Seconds | None = None) -> None:
        """Copy the parts, because each environment needs a chain of its own.

        Args:
            parts: in order; the first one gets the action that was chosen, within the bounds.
            time_step_s: seconds from one action to the next, for an environment without a clock;
                None: the environment has one.
        """
        self._parts = copy.deepcopy(list(parts))
        # clipped first as well: a filter's state would run away beyond the bounds
        self._changes: list[Callable[[Values], object]] = [self._clip, *self._parts, self._clip]
        self._time_step_s = time_step_s

    def connect(self, space: gymnasium.Space[Any], default_action: Any, time_step_s: float) -> None:
        """Set the action space, the default action and the environment's time-step in seconds; 0:
        it has no clock.

        Raises:
            ConfigError: the space is not a Box of floats with bounds; neither the chain nor the
                environment has a time-step; a part has values for fewer or more numbers.
        """
        is_box = (
            isinstance(space, spaces.Box)
            and space.is_bounded()
            and np.issubdtype(space.dtype, np.floating)
        )
        expect(
            is_box, "the space of actions", space, "for an action_chain a Box of floats with bounds"
        )
        assert isinstance(space, spaces.Box)
        self._shape, self._dtype = space.shape, space.dtype
        step_s = self._time_step_s or time_step_s
        if not step_s:
            raise ConfigError(
                "the environment has no clock: give its action_chain a time_step_s, in seconds"
            )
        rest = np.asarray(default_action, np.float64).ravel().tolist()
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        self._actions = ActionRange(rest, low, high, step_s)
        self.begin()

    def begin(self) -> None:
        """Begin an episode."""
        for part in self._parts:
            part.begin(self._actions)

    def __call__(self, action: Any) -> NDArray[Any]:
        """Return the action that the environment gets for the one that was chosen.

        Raises:
            ConfigError: the action, or what a part made of it, is not finite; a part returned an
                action.
        """
        numbers = np.asarray(action).ravel().tolist()
        for change in self._changes:
            if change(numbers) is not None:
                raise ConfigError(
                    f"{type(change).__name__} returns an action; expected a part that changes, in "
                    "place, the list that it is called with"
                )
        sent = np.array(numbers, self._dtype)
        return sent if sent.shape == self._shape else sent.reshape(self._shape)

    def _clip(self, numbers: Values) -> None:
        low, high = self._actions.low, self._actions.high
        for i, x in enumerate(numbers):
            if not low[i] <= x <= high[i]:
                if not math.isfinite(x):
                    names = ", ".join(type(part).__name__ for part in self._parts)
                    raise ConfigError(f"an action of {names} is not finite: {numbers}")
                numbers[i] = low[i] if x < low[i] else high[i]

    def end(self, stats: EpisodeStats) -> None:
        """End an episode, with these statistics."""
        for part in self._parts:
            part.end(stats)


class OneEuroFilter(ActionPart):
    """A low-pass filter that lets fast movements through: Casiez, Roussel and Vogel, "1 Euro
    Filter", CHI 2012.

    Equations 1 to 6, for each number, where speed is the change per second after a low pass at
    `speed_cutoff_hz`:

        f = min_cutoff_hz + beta abs(speed),    y <- y + (x - y) / (1 + 1 / (2 pi f dt)).
    """

    @in_ranges
    def __init__(
        self,
        min_cutoff_hz: _Hertz = 1.0,
        beta: Annotated[float, Meta(ge=0, le=1e6)] = 0.0,
        speed_cutoff_hz: _Hertz = 1.0,
    ) -> None:
        """Set the frequencies.

        Args:
            min_cutoff_hz: cutoff at rest; a lower value suppresses more jitter.
            beta: how much the cutoff grows, in Hz, with each unit of the action per second; a
                higher value lags less. 0: a plain first-order low pass.
            speed_cutoff_hz: cutoff of the low pass for the speed.
        """
        self._min_cutoff_hz, self._beta = min_cutoff_hz, beta
        self._speed_cutoff_hz = speed_cutoff_hz

    def begin(self, actions: ActionRange) -> None:
        self._turn = 2.0 * math.pi * actions.step_s
        at_rest = self._turn * self._min_cutoff_hz
        self._share_at_rest = at_rest / (1.0 + at_rest)
        self._speed_share = 1.0 / (1.0 + 1.0 / (self._turn * self._speed_cutoff_hz))
        self._rate_hz = 1.0 / actions.step_s
        self._inputs, self._last = list(actions.rest), list(actions.rest)
        self._speeds = [0.0] * len(actions.rest)

    def __call__(self, action: Values) -> None:
        last = self._last
        if not self._beta:  # no speed is needed then
            share = self._share_at_rest
            for i, x in enumerate(action):
                action[i] = last[i] = last[i] + (x - last[i]) * share
            return
        rate_hz, share = self._rate_hz, self._speed_share
        inputs, speeds = self._inputs, self._speeds
        for i, x in enumerate(action):
            speeds[i] += share * ((x - inputs[i]) * rate_hz - speeds[i])
            inputs[i] = x
            cutoff = self._turn * (self._min_cutoff_hz + self._beta * abs(speeds[i]))
            action[i] = last[i] = last[i] + (x - last[i]) * cutoff / (1.0 + cutoff)


class RateLimit(ActionPart):
    """Limits the rate at which each number changes."""

    def __init__(self, per_s: PerNumber) -> None:
        """Set the limit, in units of the action per second."""
        self._per_s = per_s

    def begin(self, actions: ActionRange) -> None:
        self._most = [limit * actions.step_s for limit in _limits(actions, "per_s", self._per_s)]
        self._last = list(actions.rest)

    def __call__(self, action: Values) -> None:
        last, most = self._last, self._most
        for i, x in enumerate(action):
            change = x - last[i]
            if abs(change) > most[i]:
                x = last[i] + math.copysign(most[i], change)
            action[i] = last[i] = x


class AccelerationLimit(ActionPart):
    """Limits the rate at which the speed of each number changes; a number comes to rest at its goal
    without overshoot.

    The moves of two consecutive steps differ by at most b = a dt^2. Towards a goal at distance d, a
    number moves as far as it can while the moves m, m - b, m - 2 b, … that bring it to rest add up
    to d: with the largest k for which b k (k + 1) / 2 <= d,

        m = b k / 2 + d / (k + 1).
    """

    def __init__(self, per_s2: PerNumber) -> None:
        """Set the limit a, in units of the action per second squared."""
        self._per_s2 = per_s2

    def begin(self, actions: ActionRange) -> None:
        self._most = [
            limit * actions.step_s**2 for limit in _limits(actions, "per_s2", self._per_s2)
        ]
        self._last = list(actions.rest)
        self._moves = [0.0] * len(actions.rest)  # of the newest step

    def __call__(self, action: Values) -> None:
        last, moves = self._last, self._moves
        for i, x in enumerate(action):
            most, distance = self._most[i], abs(x - last[i])
            steps = int(math.sqrt(0.25 + 2.0 * distance / most) - 0.5)
            # with an infinite limit there are no such steps, and infinity times 0 is NaN
            move = (0.5 * most * steps if steps else 0.0) + distance / (steps + 1)
            if x < last[i]:
                move = -move
            change = move - moves[i]
            if abs(change) > most:
                move = moves[i] + math.copysign(most, change)
            moves[i] = move
            action[i] = last[i] = last[i] + move


class DeadZone(ActionPart):
    """Replaces a number that is less than `width` away from the default action with the default."""

    def __init__(self, width: PerNumber) -> None:
        """Set the width, in units of the action."""
        self._width = width

    def begin(self, actions: ActionRange) -> None:
        self._rest, self._widths = actions.rest, actions.each("width", self._width)
        expect(all(w >= 0.0 for w in self._widths), "width", self._width, "0 or more")

    def __call__(self, action: Values) -> None:
        for i, x in enumerate(action):
            if abs(x - self._rest[i]) < self._widths[i]:
                action[i] = self._rest[i]


class GrowingRange(ActionPart):
    """Limits actions to a range around the default action that grows to the whole action space.

    Smith et al., "Grow Your Limits: Continuous Improvement with Real-World RL for Robotic
    Locomotion", 2023 (APRL), widen what a robot may do in this way. The range is a share of the way
    from the default action to each bound. It grows from `first` to 1 with steps, with successful
    episodes, or with both; each environment counts its own, from the worker's start.
    """

    @in_ranges
    def __init__(
        self,
        first: Annotated[float, Meta(gt=0, le=1)],
        steps: Positive | None = None,
        episodes: Positive | None = None,
        min_return: float = 0.0,
    ) -> None:
        """Set how the range grows.

        Args:
            first: the share at the start.
            steps: number of steps after which the share is 1; None: it does not grow with steps.
            episodes: number of successful episodes after which the share is 1; None: it does not
                grow with episodes.
            min_return: return from which an episode counts as successful; one that a fault ended
                never does.
        """
        expect(bool(steps or episodes), "steps and episodes", None, "one of them at least")
        self._min_return = min_return
        self._per_step = (1.0 - first) / steps if steps else 0.0
        self._per_episode = (1.0 - first) / episodes if episodes else 0.0
        self.share = first

    def begin(self, actions: ActionRange) -> None:
        self._actions = actions

    def __call__(self, action: Values) -> None:
        for i, x in enumerate(action):
            rest = self._actions.rest[i]
            bound = self._actions.low[i] if x < rest else self._actions.high[i]
            most = self.share * (bound - rest)
            if abs(x - rest) > abs(most):
                action[i] = rest + most
        self.share = min(1.0, self.share + self._per_step)

    def end(self, stats: EpisodeStats) -> None:
        if not stats.fault and stats.return_ >= self._min_return:
            self.share = min(1.0, self.share + self._per_episode)


def _limits(actions: ActionRange, name: str, value: PerNumber) -> Values:
    values = actions.each(name, value)
    expect(all(v > 0.0 for v in values), name, value, "more than 0")
    return values
