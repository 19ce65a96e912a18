"""A demonstrated way around a track, and the reward for progress along it.

The demonstration is cut into equally spaced points. A step is rewarded for each point that it
passes.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.base.files import write_atomically
from tmrl_like.base.options import AboveZero, Natural, Options, Positive, Reward
from tmrl_like.envs.way import Points, Way, checked_points
from tmrl_like.errors import ConfigError, expect

_MOST_PIECES = 10_000_000


def resample(positions: Any, spacing: float) -> Points:
    """Cut the way through `positions` into equal pieces.

    Args:
        positions: [T, D], in the order in which they were passed; standing still is fine.
        spacing: length of a piece, in the unit of the positions. The last point of the way is kept,
            so pieces are a little longer or shorter than this.

    Returns:
        The points, float32 [N, D].

    Raises:
        ConfigError: the positions are not a path, or the path is shorter than half a piece or
            longer than 10 million.
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
    """Write points [N, D] to an .npz file atomically.

    Raises:
        ConfigError: the points are not a trajectory, or the file cannot be written.
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
    """Read points that `save_trajectory` wrote. No code from the file is run.

    Raises:
        ConfigError: there is no such file, it holds no trajectory, or its positions do not have
            `dimensions` coordinates (None allows 2 or 3).
    """
    try:
        with np.load(  # noqa: TID251
            io.BytesIO(Path(file).read_bytes()), allow_pickle=False
        ) as content:
            points = content["points"]
    except FileNotFoundError:
        raise ConfigError(
            f"there is no trajectory at {file}: record one with `tmrl-like record --lap`"
        ) from None
    except Exception as error:  # zipfile, zlib and numpy each raise their own
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
    """How progress along a demonstration is rewarded, and what ends an episode.

    Attributes:
        forward_limit: the most points that one step can pass; at least as many as the fastest step
            passes.
        backward_limit: the most points that one step can fall back.
        failure_countdown: number of steps in a row without progress that ends an episode.
        min_steps: steps at the start of an episode that `failure_countdown` ignores.
        max_distance: a position further than this from all points within the limits passes none.
        reward_per_point: reward of each point passed; each point fallen back costs as much.
        end_of_track_reward: added at the last point.
        failure_reward: added when `failure_countdown` ends an episode; a negative one has the agent
            keep a margin.
        constant_penalty: added to the reward of each step; negative for a penalty.
    """

    forward_limit: Positive = 50
    backward_limit: Natural = 10
    failure_countdown: Positive = 20
    min_steps: Natural = 70
    max_distance: AboveZero = math.inf
    reward_per_point: Reward = 0.01
    end_of_track_reward: Reward = 100.0
    failure_reward: Reward = 0.0
    constant_penalty: Reward = 0.0


class TrajectoryReward(Way):
    """Rewards progress along a demonstration, which is its `Way`.

    The reward is `reward_per_point` times the number of points passed. Going back loses what going
    forward again regains, so driving to and fro earns nothing. An episode terminates at the last
    point, or after `failure_countdown` steps in a row that did not get beyond the furthest point so
    far.
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
            options: how progress is rewarded.
            half_width: half the road's width, the unit of the potential in `info`.

        Raises:
            ConfigError: the points are not a way, or one step could pass from its start to a point
                of its second half that is no further away than the next one.
        """
        self._options, self._half_width = options, half_width
        forward = options.forward_limit
        super().__init__(points, forward, options.backward_limit, options.max_distance)
        half = len(self._points) // 2
        far = self._points[half + 1 : forward + 2] - self._points[0]  # from the second point, too
        expect(
            np.linalg.norm(far, axis=1).min(initial=math.inf) > self.length / self.last,
            "forward_limit",
            forward,
            f"less than {half}, half of the points of this way, which comes back to its start",
        )

    def reset(self) -> None:
        """Begin at the first point again."""
        super().reset()
        self._steps = self._steps_without_progress = 0

    @property
    def progress(self) -> float:
        """Share of the track driven since `reset`, 0 to 1."""
        return self.furthest / self.last

    @property
    def is_at_end(self) -> bool:
        """Whether the last point was reached."""
        return self.index == self.last

    def info(self, position: Any) -> dict[str, Any]:
        """Return where on the track `position`, [D], is, after the call that rewarded it; see
        `Way.where`.
        """
        return self.where(position, self.progress, self._half_width)

    def __call__(self, position: Any) -> tuple[float, bool]:
        """Return the reward of a step that ended at `position`, [D], and whether the episode
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
        if self._steps_without_progress >= options.failure_countdown:
            return reward + options.failure_reward, True
        return reward, False


class Lap:
    """Takes the place of a `TrajectoryReward` while a demonstration is recorded; rewards are 0.

    A lap is over once the vehicle has been further than `away` from where the lap began and is then
    less than `back` from it, in the unit of the positions.

    Attributes:
        is_at_end: always False, because no demonstration says where the end is.
    """

    is_at_end = False

    def __init__(self, away: float = math.inf, back: float = 0.0) -> None:
        """Begin a lap. By default it never ends by itself."""
        self._away, self._back = away, back
        self.reset()

    def reset(self) -> None:
        """Begin a lap at the next position."""
        self._start: Any = None
        self._was_away = False

    def info(self, position: Any) -> dict[str, Any]:
        """Return the position, float32 [D]."""
        return {"position": np.array(position, np.float32)}

    def __call__(self, position: Any) -> tuple[float, bool]:
        """Return a reward of 0, and whether the lap is over at `position`, [D]; one that is not
        finite is ignored.
        """
        if not np.isfinite(position).all():
            return 0.0, False
        self._start = np.array(position) if self._start is None else self._start
        distance = float(np.linalg.norm(self._start - position))
        self._was_away |= distance > self._away
        return 0.0, self._was_away and distance < self._back
