"""The drone's environment, which says when it is stepped for the first time (see worker_start.py)."""

from __future__ import annotations

from typing import Any

from tmrl_like.envs.drone import DroneEnv

SAYS = "first step"


class StepsFirst(DroneEnv):
    has_stepped = False

    def step(self, action: Any) -> Any:
        if not self.has_stepped:
            self.has_stepped = True
            print(SAYS, flush=True)
        return super().step(action)
