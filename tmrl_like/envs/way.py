"""Progress along a way: a line through points, and a current place on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_like.errors import ConfigError

_SHORTEST = 1e-12  # avoids a division by the zero length of a line

Points = NDArray[np.float32]  # [N, D]; D = 2 or 3


class Way:
    """Tracks how far a vehicle has come along a line through points.

    The vehicle is always *at* one of the points, initially the first. Each followed position moves
    it to the nearest of the points from `backward` behind to `forward` ahead; of several equally
    near ones, to the furthest along. So a short cut past more points than that gains nothing, and a
    way that crosses itself offers none.

    Attributes:
        index: number of the point at which the vehicle is, 0 to `last`.
        furthest: largest `index` since `reset`.
        last: number of the last point.
        length: length of the way from the first point to the last, in the unit of the points.
        distance: distance along the way to the place nearest to the vehicle on the two lines that
            meet at its point.
    """

    def __init__(
        self, points: Any, forward: int = 1, backward: int = 0, max_distance: float = math.inf
    ) -> None:
        """Begin at the first of the points, [N, 2] or [N, 3].

        A position further than `max_distance` from all points within reach changes nothing.

        Raises:
            ConfigError: the points are not a way.
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
        """Move the vehicle to `position`, [D]; return the distance gained along the way, which is
        negative if it went back.
        """
        here = np.asarray(position, np.float64)
        first = max(0, self.index - self._backward)
        ways = self._points[first : self.index + self._forward + 1] - here
        distances = np.einsum("nd,nd->n", ways, ways)
        nearest = len(distances) - 1 - int(distances[::-1].argmin())
        if not distances[nearest] <= self._max_distance**2:  # also true for NaN
            return 0.0
        self.index = first + nearest
        self.furthest = max(self.furthest, self.index)
        before, self.distance = self.distance, self._place(here)
        return self.distance - before

    def _place(self, here: NDArray[np.float64]) -> float:
        """Return how far along the way the place nearest to `here` is, on the lines that meet at
        the current point.
        """
        lines = slice(max(0, self.index - 1), self.index + 1)
        steps, lengths = self._lines[lines], self._lengths[lines]
        from_starts = here - self._points[:-1][lines]
        shares = np.einsum("nd,nd->n", from_starts, steps) / np.maximum(lengths**2, _SHORTEST)
        shares = shares.clip(0.0, 1.0)
        best = int(np.linalg.norm(from_starts - shares[:, None] * steps, axis=1).argmin())
        return float(self._along[lines][best] + shares[best] * lengths[best])

    def off(self, position: Any) -> float:
        """Return the distance of `position`, [D], from the vehicle's place on the way."""
        return float(np.linalg.norm(np.asarray(position, np.float64) - self.ahead([0.0])[0]))

    def ahead(self, distances: Any) -> NDArray[np.float64]:
        """Return the places on the way at these distances ahead of the vehicle,
        [len(distances), D]; beyond the end of the way, its last point.
        """
        along = self.distance + np.asarray(distances)
        return np.stack([np.interp(along, self._along, axis) for axis in self._points.T], axis=1)

    def where(self, position: Any, progress: float, half_width: float) -> dict[str, Any]:
        """Return where on the way `position`, [D], is, for an environment's `info`; call `follow`
        with it first.

        Args:
            position: the vehicle's position.
            progress: the share of the way that counts as done.
            half_width: half the road's width, the unit of the potential.

        Returns:
            progress: float32 [].
            distance: float32 [], distance along the way, in its unit.
            potential: float32 [], minus the distance from the way, in half widths of the road.
            position: float32 [D].
        """
        return {
            "progress": np.float32(progress),
            "distance": np.float32(self.distance),
            "potential": np.float32(-self.off(position) / half_width),
            "position": np.array(position, np.float32),
        }


def checked_points(points: Any, whose: str = "") -> Points:
    """Return the points of a way as float32 [N, 2] or [N, 3].

    Raises:
        ConfigError: they are not the points of a way; `whose` begins the message.
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
