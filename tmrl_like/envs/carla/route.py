"""A way along the lanes of the map, how far a vehicle got on it, what that earns, and when it ends.

Shape names: N points of a route, M lines between them, K of these near the vehicle.
"""
# ruff: noqa: N803, N806
# Capital suffixes name an array's dimensions.

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_like.envs.carla.vehicle import VehicleState
from tmrl_like.errors import expect

if TYPE_CHECKING:
    import carla

_SPACING_M = 2.0
_SHORTEST_M = 10.0
_LOOK_BACK_M = 10.0
_LOOK_AHEAD_M = 20.0
_ROUTE_ENDS_M = 2.0
_GAIN_M = 1.0

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, kw_only=True)
class RouteOptions:
    """The task: how far to drive, what it earns, what ends it.

    A step's reward is the metres that the vehicle got on along its route, minus penalties.
    """

    length_m: float = 300.0
    """The route's length; it is shorter where the road ends, but begins nowhere less than 10 m before that."""
    ahead_m: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    """The driver sees the points of the route that are so far ahead."""
    off_route_m: float = 4.0
    """Farther than this from the middle of the lane ends the episode."""
    stuck_after_s: float = 10.0
    """No metre gained in this time, on the simulator's clock, ends the episode."""
    collision_penalty: float = 20.0
    """For a collision, which ends the episode, too."""
    lane_penalty: float = 0.5
    """For each line that is crossed."""

    def __post_init__(self) -> None:
        least = {"length_m": 2 * _SPACING_M, "off_route_m": 0.1, "stuck_after_s": 0.1}
        for name in (*least, "collision_penalty", "lane_penalty"):
            value, low = getattr(self, name), least.get(name, 0)
            expect(low <= value < math.inf, name, value, f"{low} or more, and finite")
        are_ways = bool(self.ahead_m) and all(0 <= ahead_m < math.inf for ahead_m in self.ahead_m)
        expect(are_ways, "ahead_m", self.ahead_m, "metres, each 0 or more and finite")


def plan_route(start: carla.Waypoint, length_m: float, random: np.random.Generator) -> Route | None:
    """Follow the lane from `start`; where it forks, a branch is drawn. None: the lane ends too soon."""
    here, points = start, []
    for _ in range(int(length_m / _SPACING_M) + 1):
        points.append((here.transform.location.x, here.transform.location.y))
        ways = here.next(_SPACING_M)
        if not ways:
            break
        here = ways[int(random.integers(len(ways)))]
    is_too_short = (len(points) - 1) * _SPACING_M < min(length_m - _SPACING_M, _SHORTEST_M)
    return None if is_too_short else Route(np.array(points))


class Route:
    """A line through points, and the place on it that was reached.

    Attributes:
        length_m: from the first point to the last.
        reached_m: how far along the vehicle was when it was last looked for.
        off_m: how far beside it was.
    """

    def __init__(self, points_N2: Array) -> None:
        """Begin at the start of the line; the points are x and y in metres."""
        self._points_N2 = points_N2
        self._steps_M2 = np.diff(points_N2, axis=0)
        self._lengths_M = np.hypot(*self._steps_M2.T)
        self._along_N = np.concatenate(([0.0], np.cumsum(self._lengths_M)))
        self.length_m = float(self._along_N[-1])
        self.reached_m = self.off_m = 0.0

    def follow(self, x_m: float, y_m: float) -> float:
        """Look for the vehicle near the place where it was last; returns the metres gained, negative if it went back.

        Only the route near that place counts: a route that crosses itself has no short cuts.
        """
        near = slice(*np.searchsorted(self._along_N, (self.reached_m - _LOOK_BACK_M, self.reached_m + _LOOK_AHEAD_M)))
        starts_K2, steps_K2, lengths_K = self._points_N2[:-1][near], self._steps_M2[near], self._lengths_M[near]
        ways_K2 = (x_m, y_m) - starts_K2
        shares_K = np.clip((ways_K2 * steps_K2).sum(axis=1) / lengths_K**2, 0.0, 1.0)
        offs_K = np.hypot(*(ways_K2 - shares_K[:, None] * steps_K2).T)
        best = int(offs_K.argmin())
        before = self.reached_m
        self.off_m = float(offs_K[best])
        self.reached_m = float(self._along_N[:-1][near][best] + shares_K[best] * lengths_K[best])
        return self.reached_m - before

    def ahead(self, distances_m: tuple[float, ...]) -> tuple[Array, Array]:
        """Points so far ahead, x and y [len(distances_m)] each; the last point where the route ends before."""
        along = self.reached_m + np.array(distances_m)
        x_N, y_N = self._points_N2.T
        return np.interp(along, self._along_N, x_N), np.interp(along, self._along_N, y_N)


class Drive:
    """A car on its way along a route.

    Attributes:
        began_in_frame: of the simulator.
    """

    def __init__(self, task: RouteOptions, route: Route, state: VehicleState) -> None:
        self._task, self._route = task, route
        self.began_in_frame = state.frame
        self._best_m, self._best_at_s = 0.0, state.time_s

    def judge(self, state: VehicleState, impulse: float, lines: int) -> tuple[float, str]:
        """Judge the way since the last call, with collisions of `impulse` N s and so many crossed `lines`.

        Returns:
            The reward, and what ended the drive: "collision", "off route", "end of route", "stuck" or nothing.
        """
        reward = self._route.follow(state.x_m, state.y_m) - self._task.lane_penalty * lines
        if self._route.reached_m >= self._best_m + _GAIN_M:
            self._best_m, self._best_at_s = self._route.reached_m, state.time_s
        if impulse > 0:
            return reward - self._task.collision_penalty, "collision"
        if self._route.off_m > self._task.off_route_m:
            return reward, "off route"
        if self._route.reached_m >= self._route.length_m - _ROUTE_ENDS_M:
            return reward, "end of route"
        return reward, "stuck" if state.time_s - self._best_at_s > self._task.stuck_after_s else ""

    def info(self, state: VehicleState) -> dict[str, Any]:
        """Where the car is: the simulator's clock, and the rest as of other environments with a track.

        Returns:
            time_s: s.
            progress: float32 [], share of the route; 1 where it ends the drive.
            distance: float32 [], m along the route.
            potential: float32 [], minus the distance from the lane's middle, in units of `off_route_m`.
            position: float32 [2], m.
        """
        route = self._route
        return {
            "time_s": state.time_s,
            "progress": np.float32(np.clip(route.reached_m / (route.length_m - _ROUTE_ENDS_M), 0.0, 1.0)),
            "distance": np.float32(route.reached_m),
            "potential": np.float32(-route.off_m / self._task.off_route_m),
            "position": np.array((state.x_m, state.y_m), np.float32),
        }

    def route_ahead(self, state: VehicleState) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Points ahead as seen from the car, float32 [2 * len(ahead_m)]: metres forward, then to the right."""
        x, y = self._route.ahead(self._task.ahead_m)
        limit_m = max(self._task.ahead_m) + self._task.off_route_m
        own = np.concatenate(state.to_own_frame(x - state.x_m, y - state.y_m))
        seen: np.ndarray[Any, np.dtype[np.float32]] = np.clip(own, -limit_m, limit_m).astype(np.float32)
        return seen
