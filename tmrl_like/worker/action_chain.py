"""What stands between who drives and the environment: filters and limits, in the order in which a
user lists them.

    driver -> filter -> limits -> environment

What comes out of the chain is what the environment gets, and so what the sample, the action buffer
and the memory hold. A part keeps a state within an episode. Learning needs to see it: with
`act_buf_len` of 1 the newest action is in the observation, which is the state of `LowPass` and
`RateLimit`; with 2 so is the speed, for the other ones.

Values of actions are Python's, in one list that each part changes in place: at the few numbers that
an action has, numpy takes longer, and so do new lists, `zip` and calls of `min` and `max`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from tmrl_like.errors import ConfigError, expect
from tmrl_like.types import EpisodeStats

Values: TypeAlias = list[float]
"""Those of an action, flattened, in the unit of the action space."""

PerNumber: TypeAlias = float | Sequence[float]
"""One value for all numbers of an action, or one for each."""


@dataclass(frozen=True)
class ActionRange:
    """What actions are, and how often they come.

    Attributes:
        rest: the environment's default action, with which an episode begins.
        low: least action.
        high: largest action.
        step_s: seconds from an action to the next.
    """

    rest: Values
    low: Values
    high: Values
    step_s: float

    def each(self, name: str, value: PerNumber) -> Values:
        """`value` for each number of an action; ConfigError: there are more or fewer."""
        values = (
            [float(value)] * len(self.rest)
            if isinstance(value, int | float)
            else [float(v) for v in value]
        )
        num = len(self.rest)
        expect(len(values) == num, name, value, f"one number, or {num}, one for each of an action")
        return values


class ActionPart:
    """A part of a chain. Subclass it for one of your own."""

    def begin(self, actions: ActionRange) -> None:
        """An episode begins, with the environment at rest."""

    def __call__(self, action: Values) -> None:
        """Make of an action, in place, what becomes of it."""
        raise NotImplementedError

    def end(self, stats: EpisodeStats) -> None:
        """An episode has ended."""


class ActionChain:
    """The parts, one behind the other; what comes out is cut off at the bounds of the action
    space.
    """

    def __init__(self, parts: Sequence[ActionPart], time_step_s: float | None = None) -> None:
        """Take copies of the parts: several environments have a chain each.

        Args:
            parts: the first one gets what the driver chose.
            time_step_s: seconds from an action to the next, for an environment without a clock;
                None: it has one.
        """
        expect(
            time_step_s is None or 0.0 < time_step_s < math.inf,
            "time_step_s",
            time_step_s,
            "more than 0",
        )
        self._parts = copy.deepcopy(list(parts))
        self._changes: Sequence[Callable[[Values], object]] = self._parts
        self._time_step_s = time_step_s

    def connect(self, space: gymnasium.Space[Any], default_action: Any, time_step_s: float) -> None:
        """Say what actions are, and how long the environment's time-step is; 0: it has no clock.

        Raises:
            ConfigError: the numbers of actions have no bounds; nobody says how long a time-step is;
                a part has values for fewer or more numbers.
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
        """An episode begins."""
        for part in self._parts:
            part.begin(self._actions)

    def __call__(self, action: Any) -> NDArray[Any]:
        """What the environment gets for what the driver chose.

        Raises:
            ConfigError: a part made what is not finite, or returned an action.
        """
        numbers = np.asarray(action).ravel().tolist()
        for change in self._changes:
            if change(numbers) is not None:
                raise ConfigError(
                    f"{type(change).__name__} returns an action; expected a part that changes, in "
                    "place, the list that it is called with"
                )
        if not math.isfinite(sum(numbers)):
            names = ", ".join(type(part).__name__ for part in self._parts)
            raise ConfigError(f"an action of {names} is not finite: {numbers}")
        low, high = self._actions.low, self._actions.high
        for i, x in enumerate(numbers):
            if not low[i] <= x <= high[i]:
                numbers[i] = low[i] if x < low[i] else high[i]
        return np.array(numbers, self._dtype).reshape(self._shape)

    def end(self, stats: EpisodeStats) -> None:
        """An episode has ended."""
        for part in self._parts:
            part.end(stats)


class LowPass(ActionPart):
    """First-order low pass:  y <- y + (1 - exp(-2 pi f dt)) (x - y)."""

    def __init__(self, cutoff_hz: float) -> None:
        """Take the frequency f above which it damps."""
        expect(0.0 < cutoff_hz < math.inf, "cutoff_hz", cutoff_hz, "more than 0")
        self._cutoff_hz = cutoff_hz

    def begin(self, actions: ActionRange) -> None:
        self._share = 1.0 - math.exp(-2.0 * math.pi * self._cutoff_hz * actions.step_s)
        self._last = list(actions.rest)

    def __call__(self, action: Values) -> None:
        share, last = self._share, self._last
        for i, x in enumerate(action):
            action[i] = last[i] = last[i] + share * (x - last[i])


class OneEuroFilter(ActionPart):
    """A low pass that lets fast movements through: Casiez, Roussel and Vogel, "1 Euro Filter", CHI
    2012.

    Eq. 1 to 6, for each number:  speed <- low pass of the change per second, at `speed_cutoff_hz`;

        f = min_cutoff_hz + beta abs(speed),    y <- y + (x - y) / (1 + 1 / (2 pi f dt)).
    """

    def __init__(
        self, min_cutoff_hz: float = 1.0, beta: float = 0.0, speed_cutoff_hz: float = 1.0
    ) -> None:
        """Take the frequencies.

        Args:
            min_cutoff_hz: of what hardly moves: lower shakes less.
            beta: by how much it grows, in Hz, with each unit of the action per second: higher lags
                less.
            speed_cutoff_hz: of the speed's own low pass.
        """
        for name, value in (("min_cutoff_hz", min_cutoff_hz), ("speed_cutoff_hz", speed_cutoff_hz)):
            expect(0.0 < value < math.inf, name, value, "more than 0")
        expect(0.0 <= beta < math.inf, "beta", beta, "0 or more")
        self._min_cutoff_hz, self._beta, self._speed_cutoff_hz = (
            min_cutoff_hz,
            beta,
            speed_cutoff_hz,
        )

    def begin(self, actions: ActionRange) -> None:
        self._turn = 2.0 * math.pi * actions.step_s
        self._speed_share = 1.0 / (1.0 + 1.0 / (self._turn * self._speed_cutoff_hz))
        self._rate_hz = 1.0 / actions.step_s
        self._inputs, self._last = list(actions.rest), list(actions.rest)
        self._speeds = [0.0] * len(actions.rest)

    def __call__(self, action: Values) -> None:
        rate_hz, share = self._rate_hz, self._speed_share
        inputs, speeds, last = self._inputs, self._speeds, self._last
        for i, x in enumerate(action):
            speeds[i] += share * ((x - inputs[i]) * rate_hz - speeds[i])
            inputs[i] = x
            cutoff = self._turn * (self._min_cutoff_hz + self._beta * abs(speeds[i]))
            action[i] = last[i] = last[i] + (x - last[i]) * cutoff / (1.0 + cutoff)


class RateLimit(ActionPart):
    """No number changes by more than so much per second."""

    def __init__(self, per_s: PerNumber) -> None:
        """Take the limit, in units of the action per second."""
        self._per_s = per_s

    def begin(self, actions: ActionRange) -> None:
        self._most = [limit * actions.step_s for limit in _limits(actions, "per_s", self._per_s)]
        self._last = list(actions.rest)

    def __call__(self, action: Values) -> None:
        last, most = self._last, self._most
        for i, x in enumerate(action):
            low, high = last[i] - most[i], last[i] + most[i]
            action[i] = last[i] = low if x < low else high if x > high else x


class AccelerationLimit(ActionPart):
    """The speed of no number changes by more than so much per second, and it comes to rest without
    going beyond.

    Its moves of two steps differ by b = a dt^2 at most. Towards a goal at distance d it moves as
    far as it can while the moves m, m - b, m - 2 b, … that bring it to rest add up to d: with the
    largest k of which b k (k + 1) / 2 <= d,

        m = b k / 2 + d / (k + 1).
    """

    def __init__(self, per_s2: PerNumber) -> None:
        """Take the limit a, in units of the action per second squared."""
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
            move = 0.5 * most * steps + distance / (steps + 1)
            if x < last[i]:
                move = -move
            low, high = moves[i] - most, moves[i] + most
            moves[i] = low if move < low else high if move > high else move
            action[i] = last[i] = last[i] + moves[i]


class DeadZone(ActionPart):
    """What is less than `width` away from the default action becomes it."""

    def __init__(self, width: PerNumber) -> None:
        """Take the width, in units of the action."""
        self._width = width

    def begin(self, actions: ActionRange) -> None:
        self._rest, self._widths = actions.rest, actions.each("width", self._width)

    def __call__(self, action: Values) -> None:
        for i, x in enumerate(action):
            if abs(x - self._rest[i]) < self._widths[i]:
                action[i] = self._rest[i]


class GrowingRange(ActionPart):
    """Actions near the default action at first, and all of them in the end.

    As Smith et al., "Grow Your Limits: Continuous Improvement with Real-World RL for Robotic
    Locomotion", 2023 (APRL), widen what a robot may do. The range is a share of the way from the
    default action to each bound. It grows from `first` to 1 with steps, or with episodes that went
    well, or with both; each worker counts its own, from its start.
    """

    def __init__(
        self,
        first: float,
        steps: int | None = None,
        episodes: int | None = None,
        min_return: float = 0.0,
    ) -> None:
        """Take how it grows.

        Args:
            first: the share at first.
            steps: after so many it is 1; None: it does not grow with steps.
            episodes: after so many with a return of `min_return` it is 1; None: it does not grow
                with episodes.
            min_return: of an episode that went well.
        """
        expect(0.0 < first <= 1.0, "first", first, "more than 0, at most 1")
        expect(
            steps is not None or episodes is not None,
            "steps and episodes",
            None,
            "one of them at least",
        )
        for name, value in (("steps", steps), ("episodes", episodes)):
            expect(value is None or value >= 1, name, value, "1 or more")
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
        if stats.return_ >= self._min_return:
            self.share = min(1.0, self.share + self._per_episode)


def _limits(actions: ActionRange, name: str, value: PerNumber) -> Values:
    values = actions.each(name, value)
    expect(all(v > 0.0 for v in values), name, value, "more than 0")
    return values
