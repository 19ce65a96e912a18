"""A game for tests: a red square that the arrow keys move and "r" brings back to the middle.

It owns a window, listens to the keyboard, runs on its own clock, and tells its state over TCP: a record of two
float32 (where the square is, 0 to 1; picture number) per picture.

    python square_game.py TITLE PORT
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

WIDTH, HEIGHT, SIDE = 320, 200, 40
PIXELS_PER_TICK = 8
TICKS_PER_S = 50


def main(title, port):
    pygame.init()
    window = pygame.display.set_mode((WIDTH, HEIGHT))
    pygame.display.set_caption(title)
    clock = pygame.time.Clock()
    telemetry = Teller(port)
    left, tick = (WIDTH - SIDE) / 2, 0
    while not pygame.event.get(pygame.QUIT):
        pygame.event.pump()
        keys = pygame.key.get_pressed()
        left += PIXELS_PER_TICK * (keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
        left = (WIDTH - SIDE) / 2 if keys[pygame.K_r] else min(max(left, 0), WIDTH - SIDE)
        tick += 1
        window.fill((0, 0, 60))
        window.fill((255, 0, 0), (left, HEIGHT // 2, SIDE, SIDE))
        window.fill((0, 255, 0), (tick % WIDTH, 0, 4, 4))
        pygame.display.flip()
        telemetry.tell(struct.pack("<2f", left / (WIDTH - SIDE), tick))
        clock.tick(TICKS_PER_S)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
