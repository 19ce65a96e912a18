"""A stand-in for TrackMania: a window with a road between black borders, and the plugin's
telemetry.

The arrow keys drive, and "delete" returns to the start. The car drives along z, to the finish at
10 m.

    python trackmania_stand_in.py PORT
"""

import struct
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import pygame
from kit.games import play

FINISH_Z_M = 10.0
TICKS_PER_S = 60
SPEED = 20.0
ROAD_PX = 240


class Car:
    def __init__(self):
        self.x = self.z = 0.0

    def tick(self, window, keys):
        if keys[pygame.K_DELETE]:
            self.x = self.z = 0.0
        throttle = float(keys[pygame.K_UP])
        steering = float(keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        self.z = min(self.z + throttle * SPEED / TICKS_PER_S, FINISH_Z_M)
        self.x = min(max(self.x + 100 * steering / TICKS_PER_S, -60), 60)
        draw(window, self.x)
        place = (self.z, 0.0, 1.0, self.z)
        pedals = (steering, throttle, keys[pygame.K_DOWN])
        return struct.pack(
            "<11f", throttle * SPEED, *place, *pedals, self.z == FINISH_Z_M, 1.0, 5000.0
        )


def draw(window, x):
    """Draw the road as the driver sees it: further left if the car is on its right side."""
    width, height = window.get_size()
    left = width / 2 - ROAD_PX / 2 - x
    window.fill((0, 90, 0))
    window.fill((0, 0, 0), (left - 20, 0, ROAD_PX + 40, height))
    window.fill((120, 120, 120), (left, 0, ROAD_PX, height))


if __name__ == "__main__":
    play("Trackmania", (400, 300), int(sys.argv[1]), Car().tick, TICKS_PER_S, pygame.RESIZABLE)
