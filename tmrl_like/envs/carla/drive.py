"""One drive along a route: what of it is seen, what is earned, when it ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from tmrl_like.envs.carla.route import Route, RouteOptions
from tmrl_like.envs.carla.vehicle import VehicleState

_ROUTE_ENDS_M = 2.0
_GAIN_M = 1.0

Array = np.ndarray[Any, Any]


class Drive:
    """A car on its way.

    Attributes:
        began_in_frame: of the simulator.
    """

    def __init__(self, task: RouteOptions, route: Route, state: VehicleState) -> None:
        """Begin at the start of `route`."""
        self._task, self._route = task, route
        self.began_in_frame = state.frame
        self._best_m, self._best_at_s = 0.0, state.time_s

    def judge(self, state: VehicleState, impulse: float, lines: int) -> tuple[float, str]:
        """What was earned since the last time, and what ended the drive, if anything did.

        Args:
            state: the car now.
            impulse: of collisions, in N s.
            lines: crossed.

        Returns:
            The reward; one of "collision", "off route", "end of route", "stuck" or nothing.
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

    def route_ahead(self, state: VehicleState) -> Array:
        """Points ahead as seen from the car, float32 [2 * len(ahead_m)]: metres forward, then to the right."""
        x, y = self._route.ahead(self._task.ahead_m)
        limit_m = max(self._task.ahead_m) + self._task.off_route_m
        own = np.concatenate(state.to_own_frame(x - state.x_m, y - state.y_m))
        seen: Array = np.clip(own, -limit_m, limit_m).astype(np.float32)
        return seen
