"""Stands in for TrackMania in tests: a window with a road between black borders, and the plugin's telemetry.

The arrow keys drive, "delete" goes back to the start. The car drives along z; the finish is at z = 10 m.

    python trackmania_stand_in.py PORT
"""

import os
import struct
import sys
from pathlib import Path

os.environ["SDL_AUDIODRIVER"] = "dummy"
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
sys.path.append(str(Path(__file__).parents[2]))

import pygame
from kit.telling import Teller

FINISH_Z_M = 10.0
TICKS_PER_S = 60
SPEED = 20.0
ROAD_PX = 240


def main(port):
    pygame.init()
    window = pygame.display.set_mode((400, 300), pygame.RESIZABLE)
    pygame.display.set_caption("Trackmania")
    clock = pygame.time.Clock()
    telemetry = Teller(port)
    x = z = 0.0
    while not pygame.event.get(pygame.QUIT):
        pygame.event.pump()
        keys = pygame.key.get_pressed()
        if keys[pygame.K_DELETE]:
            x = z = 0.0
        throttle, steering = float(keys[pygame.K_UP]), float(keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        z = min(z + throttle * SPEED / TICKS_PER_S, FINISH_Z_M)
        x = min(max(x + 100 * steering / TICKS_PER_S, -60), 60)
        draw(window, x)
        braking, finished = float(keys[pygame.K_DOWN]), float(z == FINISH_Z_M)
        car = (throttle * SPEED, z, 0.0, 1.0, z, steering, throttle, braking, finished, 1.0, 5000.0)
        telemetry.tell(struct.pack("<11f", *car))
        clock.tick(TICKS_PER_S)


def draw(window, x):
    """The road as the driver sees it: it goes to the left when the car is on its right."""
    width, height = window.get_size()
    left = width / 2 - ROAD_PX / 2 - x
    window.fill((0, 90, 0))
    window.fill((0, 0, 0), (left - 20, 0, ROAD_PX + 40, height))
    window.fill((120, 120, 120), (left, 0, ROAD_PX, height))
    pygame.display.flip()


if __name__ == "__main__":
    main(int(sys.argv[1]))
