"""Progress along a way: a line through points, and the place on it where somebody is."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_like.errors import ConfigError

_SHORTEST = 1e-12  # a line of no length divides nothing

Points = NDArray[np.float32]  # [N, D]; D = 2 or 3


class Way:
    """How far somebody got along a line through points.

    He is *at* one of the points, at first the first one. Each position that is followed brings him
    to the nearest of those from `backward` behind to `forward` ahead, the furthest of several. So a
    short cut past more than that gains nothing, and a way that crosses itself has none.

    Attributes:
        index: the point at which he is, 0 to `last`.
        furthest: the furthest one since `reset`.
        last: the last point.
        length: from the first point to the last, in the unit of the points.
        distance: how far along he is: the place nearest to him on the two lines that meet at that
            point.
    """

    def __init__(
        self, points: Any, forward: int = 1, backward: int = 0, max_distance: float = math.inf
    ) -> None:
        """Begin at the first of the points, [N, 2] or [N, 3].

        Whoever is further than `max_distance` from all of them stays where he was.

        Raises:
            ConfigError: they are not a way.
        """
        self._points = checked_points(points).astype(np.float64)
        self._forward, self._backward, self._max_distance = forward, backward, max_distance
        self._lines = np.diff(self._points, axis=0)
        self._lengths = np.linalg.norm(self._lines, axis=1)
        self._along = np.concatenate([[0.0], np.cumsum(self._lengths)])
        self.last = len(self._points) - 1
        self.length = float(self._along[-1])
        self.reset()

    def reset(self) -> None:
        """Begin at the first point again."""
        self.index = self.furthest = 0
        self.distance = 0.0

    def follow(self, position: Any) -> float:
        """Look for him at `position`, [D]; returns how much further along he is, negative if he
        went back.
        """
        here = np.asarray(position, np.float64)
        first = max(0, self.index - self._backward)
        ways = self._points[first : self.index + self._forward + 1] - here
        distances = np.einsum("nd,nd->n", ways, ways)
        nearest = len(distances) - 1 - int(distances[::-1].argmin())
        if not distances[nearest] <= self._max_distance**2:  # or he is nowhere
            return 0.0
        self.index = first + nearest
        self.furthest = max(self.furthest, self.index)
        before, self.distance = self.distance, self._place(here)
        return self.distance - before

    def _place(self, here: NDArray[np.float64]) -> float:
        """How far along the nearest place is, on the lines that meet at the point where he is."""
        lines = slice(max(0, self.index - 1), self.index + 1)
        steps, lengths = self._lines[lines], self._lengths[lines]
        from_starts = here - self._points[:-1][lines]
        shares = np.einsum("nd,nd->n", from_starts, steps) / np.maximum(lengths**2, _SHORTEST)
        shares = shares.clip(0.0, 1.0)
        best = int(np.linalg.norm(from_starts - shares[:, None] * steps, axis=1).argmin())
        return float(self._along[lines][best] + shares[best] * lengths[best])

    def off(self, position: Any) -> float:
        """How far `position`, [D], is from the place where he is."""
        return float(np.linalg.norm(np.asarray(position, np.float64) - self.ahead([0.0])[0]))

    def ahead(self, distances: Any) -> NDArray[np.float64]:
        """The places so far ahead of him, [len(distances), D]; the last point where the way ends
        before.
        """
        along = self.distance + np.asarray(distances)
        return np.stack([np.interp(along, self._along, axis) for axis in self._points.T], axis=1)

    def where(self, position: Any, progress: float, half_width: float) -> dict[str, Any]:
        """Where on the way `position`, [D], is, after it was followed; for an environment's `info`.

        Args:
            position: where he is.
            progress: the share of the way that counts as done.
            half_width: of the road; the unit of the potential.

        Returns:
            progress: float32 [].
            distance: float32 [], along the way, in its unit.
            potential: float32 [], minus the distance from the way, in half widths of the road: 0 on
            it. position: float32 [D].
        """
        return {
            "progress": np.float32(progress),
            "distance": np.float32(self.distance),
            "potential": np.float32(-self.off(position) / half_width),
            "position": np.array(position, np.float32),
        }


def checked_points(points: Any, whose: str = "") -> Points:
    """The points of a way, [N, 2] or [N, 3]; ConfigError: they are none, and `whose` begins the
    line.
    """
    found: NDArray[Any] = np.asarray(points)
    is_way = (
        found.ndim == 2
        and found.shape[1] in (2, 3)
        and len(found) > 1
        and found.dtype.kind in "fiu"
    )
    if not is_way or not np.isfinite(found).all():
        raise ConfigError(
            f"{whose}the points of a way must be finite numbers [N, 2] or [N, 3] with N of 2 or "
            f"more, not {found.dtype} {list(found.shape)}: record them again"
        )
    return found.astype(np.float32)
