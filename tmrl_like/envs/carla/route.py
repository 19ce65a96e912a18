"""A way along the lanes of the map, how far a vehicle got on it, what that earns, and when it
ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tmrl_like.base.options import NotNegative, Options
from tmrl_like.envs.carla.vehicle import VehicleState
from tmrl_like.envs.way import Way
from tmrl_like.errors import expect

if TYPE_CHECKING:
    import carla

_SPACING_M = 2.0
_SHORTEST_M = 10.0
_LOOK_BACK, _LOOK_AHEAD = 5, 10  # points
_ROUTE_ENDS_M = 2.0
_GAIN_M = 1.0


@dataclass(frozen=True, kw_only=True)
class RouteOptions(Options):
    """The task: how far to drive, what it earns, what ends it.

    A step's reward is the metres that the vehicle got on along its route, minus penalties.

    Attributes:
        length_m: of the route; it is shorter where the road ends, but begins nowhere less than 10 m
            before that.
        ahead_m: the driver sees the points of the route that are so far ahead.
        off_route_m: farther than this from the middle of the lane ends the episode.
        stuck_after_s: no metre gained in this time, on the simulator's clock, ends the episode.
        collision_penalty: for a collision, which ends the episode, too.
        lane_penalty: for each line that is crossed.
    """

    length_m: Annotated[float, Meta(ge=2 * _SPACING_M, le=1e5)] = 300.0
    ahead_m: tuple[float, ...] = (5.0, 10.0, 20.0, 40.0)
    off_route_m: Annotated[float, Meta(ge=0.1)] = 4.0
    stuck_after_s: Annotated[float, Meta(ge=0.1)] = 10.0
    collision_penalty: NotNegative = 20.0
    lane_penalty: NotNegative = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        are_ways = bool(self.ahead_m) and all(0 <= ahead_m < math.inf for ahead_m in self.ahead_m)
        expect(are_ways, "ahead_m", self.ahead_m, "metres, each 0 or more and finite")


def plan_route(start: carla.Waypoint, length_m: float, random: np.random.Generator) -> Way | None:
    """Follow the lane from `start`; where it forks, a branch is drawn. None: the lane ends too
    soon.
    """
    here, points = start, []
    for _ in range(int(length_m / _SPACING_M) + 1):
        points.append((here.transform.location.x, here.transform.location.y))
        ways = here.next(_SPACING_M)
        if not ways:
            break
        here = ways[int(random.integers(len(ways)))]
    is_too_short = (len(points) - 1) * _SPACING_M < min(length_m - _SPACING_M, _SHORTEST_M)
    return None if is_too_short else Way(points, _LOOK_AHEAD, _LOOK_BACK)


class Drive:
    """A car on its way along a route.

    Attributes:
        began_in_frame: of the simulator.
    """

    def __init__(self, task: RouteOptions, route: Way, state: VehicleState) -> None:
        self._task, self._route = task, route
        self.began_in_frame = state.frame
        self._best_m, self._best_at_s = 0.0, state.time_s

    def judge(self, state: VehicleState, impulse: float, lines: int) -> tuple[float, str]:
        """Judge the way since the last call, with collisions of `impulse` N s and so many crossed
        `lines`.

        Returns:
            The reward, and what ended the drive: "collision", "off route", "end of route", "stuck"
            or nothing.
        """
        here = (state.x_m, state.y_m)
        reward = self._route.follow(here) - self._task.lane_penalty * lines
        if self._route.distance >= self._best_m + _GAIN_M:
            self._best_m, self._best_at_s = self._route.distance, state.time_s
        if impulse > 0:
            return reward - self._task.collision_penalty, "collision"
        if self._route.off(here) > self._task.off_route_m:
            return reward, "off route"
        if self._route.distance >= self._route.length - _ROUTE_ENDS_M:
            return reward, "end of route"
        return reward, "stuck" if state.time_s - self._best_at_s > self._task.stuck_after_s else ""

    def info(self, state: VehicleState) -> dict[str, Any]:
        """Where the car is: `time_s` on the simulator's clock and, in m and half widths
        `off_route_m`, `Way.where`.
        """
        progress = np.clip(self._route.distance / (self._route.length - _ROUTE_ENDS_M), 0.0, 1.0)
        where = self._route.where((state.x_m, state.y_m), progress, self._task.off_route_m)
        return {"time_s": state.time_s} | where

    def route_ahead(self, state: VehicleState) -> NDArray[np.float32]:
        """Points ahead as seen from the car, float32 [2 * len(ahead_m)]: metres forward, then to
        the right.
        """
        x, y = self._route.ahead(self._task.ahead_m).T
        limit_m = max(self._task.ahead_m) + self._task.off_route_m
        own: NDArray[np.float64] = np.concatenate(state.to_own_frame(x - state.x_m, y - state.y_m))
        return own.clip(-limit_m, limit_m).astype(np.float32)
