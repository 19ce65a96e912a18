"""What stands between who drives and the environment: filters and limits, in the order in which a user lists them.

    driver -> filter -> limits -> environment

What comes out of the chain is what the environment gets, and so what the sample, the action buffer and the memory hold.
A part keeps a state within an episode. Learning needs to see it: with `act_buf_len` of 1 the newest action is in the
observation, which is the state of `LowPass` and `RateLimit`; with 2 so is the speed, for the other ones.

Values of actions are Python's, in lists: at the few numbers that an action has, numpy takes longer.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
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
        values = [float(value)] * len(self.rest) if isinstance(value, int | float) else [float(v) for v in value]
        num = len(self.rest)
        expect(len(values) == num, name, value, f"one number, or {num}, one for each of an action")
        return values


class ActionPart:
    """A part of a chain. Subclass it for one of your own."""

    def begin(self, actions: ActionRange) -> None:
        """An episode begins, with the environment at rest."""

    def __call__(self, action: Values) -> Values:
        """What becomes of an action; not the same list."""
        raise NotImplementedError

    def end(self, stats: EpisodeStats) -> None:
        """An episode has ended."""


class ActionChain:
    """The parts, one behind the other; what comes out is cut off at the bounds of the action space."""

    def __init__(self, parts: Sequence[ActionPart], time_step_s: float | None = None) -> None:
        """Take copies of the parts: several environments have a chain each.

        Args:
            parts: the first one gets what the driver chose.
            time_step_s: seconds from an action to the next, for an environment without a clock; None: it has one.
        """
        expect(time_step_s is None or 0.0 < time_step_s < math.inf, "time_step_s", time_step_s, "more than 0")
        self._parts = copy.deepcopy(list(parts))
        self._time_step_s = time_step_s

    def connect(self, space: gymnasium.Space[Any], default_action: Any, time_step_s: float) -> None:
        """Say what actions are, and how long the environment's time-step is; 0: it has no clock.

        Raises:
            ConfigError: the numbers of actions have no bounds; nobody says how long a time-step is; a part has values
                for fewer or more numbers.
        """
        is_box = isinstance(space, spaces.Box) and space.is_bounded() and np.issubdtype(space.dtype, np.floating)
        expect(is_box, "the space of actions", space, "for an action_chain a Box of floats with bounds")
        assert isinstance(space, spaces.Box)
        self._shape, self._dtype = space.shape, space.dtype
        step_s = self._time_step_s or time_step_s
        if not step_s:
            raise ConfigError("the environment has no clock: give its action_chain a time_step_s, in seconds")
        rest = np.asarray(default_action, np.float64).ravel().tolist()
        low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
        self._actions = ActionRange(rest, low, high, step_s)
        self.begin()

    def begin(self) -> None:
        """An episode begins."""
        for part in self._parts:
            part.begin(self._actions)

    def __call__(self, action: Any) -> NDArray[Any]:
        """What the environment gets for what the driver chose; ConfigError: a part gave what is not finite."""
        numbers = np.asarray(action).ravel().tolist()
        for part in self._parts:
            numbers = part(numbers)
        if not math.isfinite(sum(numbers)):
            names = ", ".join(type(part).__name__ for part in self._parts)
            raise ConfigError(f"an action of {names} is not finite: {numbers}")
        bounds = zip(numbers, self._actions.low, self._actions.high, strict=True)
        within = [min(max(x, low), high) for x, low, high in bounds]
        return np.array(within, self._dtype).reshape(self._shape)

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
        self._last = actions.rest

    def __call__(self, action: Values) -> Values:
        share = self._share
        self._last = [y + share * (x - y) for x, y in zip(action, self._last, strict=True)]
        return self._last


class OneEuroFilter(ActionPart):
    """A low pass that lets fast movements through: Casiez, Roussel and Vogel, "1 Euro Filter", CHI 2012.

    Eq. 1 to 6, for each number:  speed <- low pass of the change per second, at `speed_cutoff_hz`;

        f = min_cutoff_hz + beta abs(speed),    y <- y + (x - y) / (1 + 1 / (2 pi f dt)).
    """

    def __init__(self, min_cutoff_hz: float = 1.0, beta: float = 0.0, speed_cutoff_hz: float = 1.0) -> None:
        """Take the frequencies.

        Args:
            min_cutoff_hz: of what hardly moves: lower shakes less.
            beta: by how much it grows, in Hz, with each unit of the action per second: higher lags less.
            speed_cutoff_hz: of the speed's own low pass.
        """
        for name, value in (("min_cutoff_hz", min_cutoff_hz), ("speed_cutoff_hz", speed_cutoff_hz)):
            expect(0.0 < value < math.inf, name, value, "more than 0")
        expect(0.0 <= beta < math.inf, "beta", beta, "0 or more")
        self._min_cutoff_hz, self._beta, self._speed_cutoff_hz = min_cutoff_hz, beta, speed_cutoff_hz

    def begin(self, actions: ActionRange) -> None:
        self._turn = 2.0 * math.pi * actions.step_s
        self._speed_share = 1.0 / (1.0 + 1.0 / (self._turn * self._speed_cutoff_hz))
        self._rate_hz = 1.0 / actions.step_s
        self._input, self._last = actions.rest, actions.rest
        self._speed = [0.0] * len(actions.rest)

    def __call__(self, action: Values) -> Values:
        turn, rate_hz, share = self._turn, self._rate_hz, self._speed_share
        found, speeds = [], []
        for x, before, y, speed in zip(action, self._input, self._last, self._speed, strict=True):
            speed += share * ((x - before) * rate_hz - speed)
            cutoff = turn * (self._min_cutoff_hz + self._beta * abs(speed))
            found.append(y + (x - y) * cutoff / (1.0 + cutoff))
            speeds.append(speed)
        self._input, self._last, self._speed = action, found, speeds
        return found


class RateLimit(ActionPart):
    """No number changes by more than so much per second."""

    def __init__(self, per_s: PerNumber) -> None:
        """Take the limit, in units of the action per second."""
        self._per_s = per_s

    def begin(self, actions: ActionRange) -> None:
        self._most = [limit * actions.step_s for limit in _limits(actions, "per_s", self._per_s)]
        self._last = actions.rest

    def __call__(self, action: Values) -> Values:
        self._last = [
            y + min(max(x - y, -most), most) for x, y, most in zip(action, self._last, self._most, strict=True)
        ]
        return self._last


class AccelerationLimit(ActionPart):
    """The speed of no number changes by more than so much per second, and it comes to rest without going beyond.

    Its moves of two steps differ by b = a dt^2 at most. Towards a goal at distance d it moves as far as it can while
    the moves m, m - b, m - 2 b, … that bring it to rest add up to d: with the largest k of which b k (k + 1) / 2 <= d,

        m = b k / 2 + d / (k + 1).
    """

    def __init__(self, per_s2: PerNumber) -> None:
        """Take the limit a, in units of the action per second squared."""
        self._per_s2 = per_s2

    def begin(self, actions: ActionRange) -> None:
        self._most = [limit * actions.step_s**2 for limit in _limits(actions, "per_s2", self._per_s2)]
        self._last = actions.rest
        self._moved = [0.0] * len(actions.rest)  # by the newest step

    def __call__(self, action: Values) -> Values:
        found, moves = [], []
        for x, y, moved, most in zip(action, self._last, self._moved, self._most, strict=True):
            way = x - y
            steps = int(0.5 * (math.sqrt(1.0 + 8.0 * abs(way) / most) - 1.0))
            move = math.copysign(0.5 * most * steps, way) + way / (steps + 1)
            move = min(max(move, moved - most), moved + most)
            found.append(y + move)
            moves.append(move)
        self._last, self._moved = found, moves
        return found


class DeadZone(ActionPart):
    """What is less than `width` away from the default action becomes it."""

    def __init__(self, width: PerNumber) -> None:
        """Take the width, in units of the action."""
        self._width = width

    def begin(self, actions: ActionRange) -> None:
        self._rest, self._widths = actions.rest, actions.each("width", self._width)

    def __call__(self, action: Values) -> Values:
        zones = zip(action, self._rest, self._widths, strict=True)
        return [rest if abs(x - rest) < width else x for x, rest, width in zones]


class GrowingRange(ActionPart):
    """Actions near the default action at first, and all of them in the end.

    As Smith et al., "Grow Your Limits: Continuous Improvement with Real-World RL for Robotic Locomotion", 2023 (APRL),
    widen what a robot may do. The range is a share of the way from the default action to each bound. It grows from
    `first` to 1 with steps, or with episodes that went well, or with both; each worker counts its own, from its start.
    """

    def __init__(
        self, first: float, steps: int | None = None, episodes: int | None = None, min_return: float = 0.0
    ) -> None:
        """Take how it grows.

        Args:
            first: the share at first.
            steps: after so many it is 1; None: it does not grow with steps.
            episodes: after so many with a return of `min_return` it is 1; None: it does not grow with episodes.
            min_return: of an episode that went well.
        """
        expect(0.0 < first <= 1.0, "first", first, "more than 0, at most 1")
        expect(steps is not None or episodes is not None, "steps and episodes", None, "one of them at least")
        for name, value in (("steps", steps), ("episodes", episodes)):
            expect(value is None or value >= 1, name, value, "1 or more")
        self._min_return = min_return
        self._per_step = (1.0 - first) / steps if steps else 0.0
        self._per_episode = (1.0 - first) / episodes if episodes else 0.0
        self.share = first

    def begin(self, actions: ActionRange) -> None:
        self._actions = actions

    def __call__(self, action: Values) -> Values:
        actions, share = self._actions, self.share
        self.share = min(1.0, share + self._per_step)
        bounds = zip(action, actions.rest, actions.low, actions.high, strict=True)
        return [min(max(x, rest + share * (low - rest)), rest + share * (high - rest)) for x, rest, low, high in bounds]

    def end(self, stats: EpisodeStats) -> None:
        if stats.return_ >= self._min_return:
            self.share = min(1.0, self.share + self._per_episode)


def _limits(actions: ActionRange, name: str, value: PerNumber) -> Values:
    values = actions.each(name, value)
    expect(all(v > 0.0 for v in values), name, value, "more than 0")
    return values
