"""Environments of the tests with pictures and with demonstrations."""

from __future__ import annotations

from typing import Any

import numpy as np
from tiny import TinyEnv


class Filmed(TinyEnv):
    """Its picture brightens with each step; it can be driven around."""

    time_step_s = 0.1

    def render(self) -> Any:
        return np.full((96, 128, 3), 20 * self.steps, np.uint8)

    @staticmethod
    def demonstrate(driver: str, step_s: float = 0.0) -> Any:
        turns = np.linspace(0.0, 2 * np.pi, 100)
        radius = {"script": 10.0, "keyboard": 20.0}[driver] + step_s
        return radius * np.stack([np.cos(turns), np.sin(turns)], axis=1)
