"""A game for tests: the arrow keys move a red square, and "r" returns it to the middle.

A telemetry record is two float32: the square's position (0 to 1) and the picture's number.

    python square_game.py TITLE PORT
"""

import struct
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

import pygame
from kit.games import play

WIDTH, HEIGHT, SIDE = 320, 200, 40
PIXELS_PER_TICK = 8
TICKS_PER_S = 50


class Square:
    def __init__(self):
        self.left, self.ticks = (WIDTH - SIDE) / 2, 0

    def tick(self, window, keys):
        moved = self.left + PIXELS_PER_TICK * (keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        self.left = (WIDTH - SIDE) / 2 if keys[pygame.K_r] else min(max(moved, 0), WIDTH - SIDE)
        self.ticks += 1
        window.fill((0, 0, 60))
        window.fill((255, 0, 0), (self.left, HEIGHT // 2, SIDE, SIDE))
        window.fill((0, 255, 0), (self.ticks % WIDTH, 0, 4, 4))
        return struct.pack("<2f", self.left / (WIDTH - SIDE), self.ticks)


if __name__ == "__main__":
    title, port = sys.argv[1:]
    play(title, (WIDTH, HEIGHT), int(port), Square().tick, TICKS_PER_S)
