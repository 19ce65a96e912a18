"""A route along the lanes of the map: a vehicle's progress on it, its reward, and the end of an
episode.
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
    """The task: how far to drive, how that is rewarded, and what ends an episode.

    The reward of a step is the metres that the vehicle advanced along its route, minus penalties.

    Attributes:
        length_m: length of the route; it is shorter if the road ends, but a route never begins less
            than 10 m before that.
        ahead_m: distances ahead of the car at which the policy sees points of the route.
        off_route_m: a greater distance than this from the middle of the lane ends the episode.
        stuck_after_s: the episode ends if no metre is gained in this time, on the simulator's
            clock.
        collision_penalty: penalty for a collision, which also ends the episode.
        lane_penalty: penalty for each line that is crossed.
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
    """Plan a route along the lane from `start`, with a branch drawn at random at each fork. Return
    None if the lane ends too soon.
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
    """One drive of a car along a route.

    Attributes:
        began_in_frame: the simulator's frame in which the drive began.
    """

    def __init__(self, task: RouteOptions, route: Way, state: VehicleState) -> None:
        self._task, self._route = task, route
        self.began_in_frame = state.frame
        self._best_m, self._best_at_s = 0.0, state.time_s

    def judge(self, state: VehicleState, impulse: float, lines: int) -> tuple[float, str]:
        """Judge what happened since the last call: the progress, collisions of `impulse` N s, and
        the number of `lines` crossed.

        Returns:
            The reward, and what ended the drive: "collision", "off route", "end of route", "stuck",
            or "" if it goes on.
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
        """Return items of `info`: `time_s` on the simulator's clock, and those of `Way.where`, in m
        and with `off_route_m` as half width.
        """
        progress = np.clip(self._route.distance / (self._route.length - _ROUTE_ENDS_M), 0.0, 1.0)
        where = self._route.where((state.x_m, state.y_m), progress, self._task.off_route_m)
        return {"time_s": state.time_s} | where

    def route_ahead(self, state: VehicleState) -> NDArray[np.float32]:
        """Return the points ahead as seen from the car, float32 [2 * len(ahead_m)]: metres forward
        of each, then metres to the right of each.
        """
        x, y = self._route.ahead(self._task.ahead_m).T
        limit_m = max(self._task.ahead_m) + self._task.off_route_m
        own: NDArray[np.float64] = np.concatenate(state.to_own_frame(x - state.x_m, y - state.y_m))
        return own.clip(-limit_m, limit_m).astype(np.float32)
