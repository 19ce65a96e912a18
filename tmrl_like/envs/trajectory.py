"""A demonstration of the way around a track, and the reward that it makes.

The demonstration is cut into equally spaced points. The reward of a step is how many of them were
passed.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from tmrl_like.base.files import write_atomically
from tmrl_like.base.options import AboveZero, Natural, Options, Positive
from tmrl_like.envs.way import Points, Way, checked_points
from tmrl_like.errors import ConfigError

_MOST_PIECES = 10_000_000
_Reward = Annotated[float, Meta(ge=-1e6, le=1e6)]


def resample(positions: Any, spacing: float) -> Points:
    """Cut the way through `positions` into equal pieces.

    Args:
        positions: [T, D], in the order in which they were passed; standing still is fine.
        spacing: length of a piece, in the unit of the positions; the last point of the way is kept,
            so that pieces are a little longer or shorter than that.

    Returns:
        The points, float32 [N, D].

    Raises:
        ConfigError: the positions are not a path, or one shorter than a piece.
    """
    way = Way(positions)
    if not 0.5 * spacing < way.length < _MOST_PIECES * spacing:
        raise ConfigError(
            f"the recorded way is {way.length:.3g} long; expected 1 to {_MOST_PIECES:g} pieces of "
            f"{spacing:g}: choose another spacing, or record more"
        )
    return way.ahead(np.linspace(0.0, way.length, round(way.length / spacing) + 1)).astype(
        np.float32
    )


def save_trajectory(file: str | Path, points: Any) -> None:
    """Write points [N, D] as an .npz file, in one step.

    Raises:
        ConfigError: they are not a trajectory, or the file cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(content, points=checked_points(points))
    try:
        write_atomically(Path(file), content.getvalue())
    except OSError as error:
        raise ConfigError(
            f"the trajectory cannot be written to {file}: {error.strerror or error}"
        ) from None


def load_trajectory(file: str | Path, dimensions: int | None = None) -> Points:
    """Read what `save_trajectory` wrote. Nothing in the file is code.

    Raises:
        ConfigError: there is no such file, no trajectory in it, or one with other `dimensions`
            (None: 2 or 3).
    """
    try:
        with np.load(io.BytesIO(Path(file).read_bytes()), allow_pickle=False) as content:
            points = content["points"]
    except FileNotFoundError:
        raise ConfigError(
            f"there is no trajectory at {file}: record one with `tmrl-like record --lap`"
        ) from None
    except Exception as error:  # zipfile, zlib and numpy each have their own
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"{file} is not an .npz file with `points` ({reason}): record it again"
        ) from None
    points = checked_points(points, f"{file}: ")
    if dimensions not in (None, points.shape[1]):
        raise ConfigError(
            f"{file}: its positions have {points.shape[1]} coordinates, this environment's "
            f"{dimensions}: record it here"
        )
    return points


@dataclass(frozen=True, kw_only=True)
class RewardOptions(Options):
    """What progress along a demonstration is worth, and what ends an episode.

    Attributes:
        forward_limit: points that one step can pass; no less than the fastest step does.
        backward_limit: points that one step can fall back.
        failure_countdown: steps in a row without progress that end an episode.
        min_steps: steps of an episode before that is counted.
        max_distance: further from all points within the limits than that, none is passed.
        reward_per_point: for each point passed; lost for each fallen back.
        end_of_track_reward: added at the last point.
        constant_penalty: added at each step; negative.
    """

    forward_limit: Positive = 50
    backward_limit: Natural = 10
    failure_countdown: Positive = 20
    min_steps: Natural = 70
    max_distance: AboveZero = math.inf
    reward_per_point: _Reward = 0.01
    end_of_track_reward: _Reward = 100.0
    constant_penalty: _Reward = 0.0


class TrajectoryReward(Way):
    """Rewards progress along a demonstration, which is its `Way`.

    Reward is `reward_per_point` times the points passed; what going back loses, going there again
    regains, so driving to and fro is worth nothing. An episode terminates at the last point, or
    after `failure_countdown` steps in a row that did not get beyond the furthest point so far.
    """

    def __init__(
        self,
        points: Any,
        options: RewardOptions = RewardOptions(),
        half_width: float = 1.0,
    ) -> None:
        """Begin at the first point.

        Args:
            points: [N, D], see `resample`.
            options: what progress is worth.
            half_width: of the road; the unit of the potential in `info`.

        Raises:
            ConfigError: the points are not a way.
        """
        self._options, self._half_width = options, half_width
        super().__init__(
            points, options.forward_limit, options.backward_limit, options.max_distance
        )

    def reset(self) -> None:
        """Begin at the first point again."""
        super().reset()
        self._steps = self._steps_without_progress = 0

    @property
    def progress(self) -> float:
        """Share of the track that was driven since `reset`, 0 to 1."""
        return self.furthest / self.last

    @property
    def is_at_end(self) -> bool:
        """Whether the last point was reached."""
        return self.index == self.last

    def info(self, position: Any) -> dict[str, Any]:
        """Where on the track `position`, [D], is, after the call that judged it; see
        `Way.where`.
        """
        return self.where(position, self.progress, self._half_width)

    def __call__(self, position: Any) -> tuple[float, bool]:
        """The reward of a step that ended at `position`, [D], and whether the episode
        terminates.
        """
        options, before, furthest = self._options, self.index, self.furthest
        self.follow(position)
        self._steps += 1
        is_stuck = self.furthest <= furthest and self._steps > options.min_steps
        self._steps_without_progress = self._steps_without_progress + 1 if is_stuck else 0
        reward = (self.index - before) * options.reward_per_point + options.constant_penalty
        if self.is_at_end:
            return reward + options.end_of_track_reward, True
        return reward, self._steps_without_progress >= options.failure_countdown


class Lap:
    """In the place of a `TrajectoryReward` while a demonstration is driven: nothing is worth
    anything.

    Attributes:
        is_at_end: no demonstration says where that is.

    A lap is over when he who was `away` from where it began is `back` within so much, in the unit
    of the positions.
    """

    is_at_end = False

    def __init__(self, away: float = math.inf, back: float = 0.0) -> None:
        """Begin; by default another one says when it is over."""
        self._away, self._back = away, back
        self.reset()

    def reset(self) -> None:
        """Begin where the next position is."""
        self._start: Any = None
        self._was_away = False

    def info(self, position: Any) -> dict[str, Any]:
        """The position, float32 [D]."""
        return {"position": np.array(position, np.float32)}

    def __call__(self, position: Any) -> tuple[float, bool]:
        """As `TrajectoryReward`."""
        self._start = np.array(position) if self._start is None else self._start
        distance = float(np.linalg.norm(self._start - position))
        self._was_away |= distance > self._away
        return 0.0, self._was_away and distance < self._back
