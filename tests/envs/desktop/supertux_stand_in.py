"""Stands in for SuperTux in tests: its window, its title and menu, its writing, and a Tux that runs
into a pit.

python supertux_stand_in.py [SuperTux's options]
"""

import os
import sys
from pathlib import Path

os.environ["SDL_AUDIODRIVER"] = "dummy"
os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
sys.path.append(str(Path(__file__).parents[3] / "config"))

import numpy as np
import pygame
from supertux import FIRST_DIGIT, GLYPHS, SPACE_PX

WIDTH, HEIGHT = 400, 300
START, PIT, GROUND = 96, 300, 577  # pixels of the level
SNOW = 255  # its brightness; it gets dark while Tux falls
TICKS_PER_S, RUN_PX, JUMP_PX, FALL_PX = 64, 5, 60, 20
BEGINS_AGAIN_AT = 1500  # pixels down


def write_position(frame, x, y):
    """Write as the game does into a picture, uint8 [300, 400, 3]; its outlines are dark."""
    column, top = FIRST_DIGIT
    for char in f"{x} Y:{y}":
        if char in GLYPHS:
            height, width = GLYPHS[char].shape
            frame[top : top + height, column : column + width] = GLYPHS[char][..., None]
        else:
            height, width = 6, SPACE_PX
            frame[top : top + height, column : column + width] = 40
        column += width


class StandIn:
    def __init__(self):
        self.shown = "title"
        self.chosen = 0  # of the menu: go on, begin again
        self.begin()

    def begin(self):
        self.x, self.y = START, GROUND

    def press(self, key):
        if self.shown == "title":
            self.shown = "level"
        elif self.shown == "level" and key == pygame.K_ESCAPE and self.y > GROUND:
            self.begin()  # it ends the sight of a dying Tux
        elif self.shown == "level" and key == pygame.K_ESCAPE:
            self.shown, self.chosen = "menu", 0
        elif self.shown == "menu" and key == pygame.K_DOWN:
            self.chosen = 1
        elif self.shown == "menu" and key == pygame.K_RETURN:
            self.shown = "level"
            if self.chosen:
                self.begin()

    def tick(self):
        if self.shown != "level":
            return
        keys = pygame.key.get_pressed()
        if self.x < PIT:
            self.x += RUN_PX * (keys[pygame.K_RIGHT] - keys[pygame.K_LEFT])
            self.y = GROUND - JUMP_PX * keys[pygame.K_SPACE]
        else:
            self.y += FALL_PX
            if self.y > BEGINS_AGAIN_AT:
                self.begin()

    def draw(self):
        light = max(0, SNOW - max(0, self.y - GROUND) // 4)
        frame = np.full((HEIGHT, WIDTH, 3), light, np.uint8)
        frame[200:, self.x % WIDTH :] = (0, light // 2, light)
        if self.shown != "menu":
            write_position(frame, self.x, self.y)
        return frame


def main():
    pygame.init()
    window = pygame.display.set_mode((WIDTH, HEIGHT))
    pygame.display.set_caption("SuperTux, its stand-in")
    clock, game = pygame.time.Clock(), StandIn()
    while not pygame.event.get(pygame.QUIT):
        for event in pygame.event.get(pygame.KEYDOWN):
            game.press(event.key)
        game.tick()
        picture = pygame.image.frombuffer(game.draw().tobytes(), (WIDTH, HEIGHT), "RGB")
        window.blit(picture, (0, 0))
        pygame.display.flip()
        clock.tick(TICKS_PER_S)


if __name__ == "__main__":
    main()
