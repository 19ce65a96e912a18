"""SuperTux, a jump and run game (Debian's package `supertux`), played as people play it: its window in, keys out.

A game of your own takes what the lower half of this file has: which window, which keys, how an episode begins, and what
a step is worth. Here that is read from the screen, by the upper half.
"""

import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from tmrl_like.envs.desktop import DesktopGameInterface
from tmrl_like.errors import EnvironmentFaultError

# The game writes where Tux is, "X:2144 Y:577", from the same pixel on. This is how it draws the digits, and Y:
FONT = """
.++..#.+ ..## .++.++. .++..#. .++.#.+# ..#+++.+ +.+#... .#...#+ .+#.##. ..#..#. #.++..#
.#....#. .##+ .+..++. .+...#. .#..#+.+ .+#+.... ..#.... ....+#. .+#.#+. .++..#. ##.#+++
.#....#. ..++ ....#.. ....+#. .######. ..++##.. .+..... ...###. ..###.. ..#+##. ###.##.
.#....#. ..++ ...#... ...+.++ ....#... .....++. .#####. ...#+.. .++..#. ...+.#. ###.+..
.++..++. ..++ ..#+... .#+..++ .+..#... .....++. .##..++ ...#... .#...#. .....#. ###+++.
..####.. ...+ .##++#+ ..###+. .+#.#... .+#+##.. .++..#. ..++... .+#+#.. .####+. ###+.+.
"""
BRIGHTNESS = {".": 40, "+": 140, "#": 220}
FIRST_DIGIT = (323, 72)  # column and row of what follows "X:"
SPACE_PX, COLON_PX = 4, 4
Y_DIGITS = 3  # what is seen behind them may look like a 1
UNLIKE = 60.0  # what is no digit differs more from each of them, in brightness


def glyphs_of(font: str) -> dict[str, NDArray[np.uint8]]:
    """The pictures of the characters, uint8 [6, columns]."""
    lines = [line.split() for line in font.strip().splitlines()]
    glyphs = {}
    for i, char in enumerate("0123456789Y"):
        glyphs[char] = np.array([[BRIGHTNESS[mark] for mark in line[i]] for line in lines], np.uint8)
    return glyphs


GLYPHS = glyphs_of(FONT)
Errors = dict[str, NDArray[np.floating[Any]]]  # of each character at each column


def read_position(frame: NDArray[np.uint8]) -> tuple[int, int] | None:
    """Where Tux is in the level, pixels to the right and down; None where nothing is written, as in the menu."""
    left, top = FIRST_DIGIT
    strip = cv2.cvtColor(frame[top : top + len(GLYPHS["Y"]), left:], cv2.COLOR_RGB2GRAY)
    errors = {}
    for char, glyph in GLYPHS.items():
        errors[char] = np.sqrt(cv2.matchTemplate(strip, glyph, cv2.TM_SQDIFF)[0] / glyph.size)
    y_column = int(np.argmin(errors["Y"]))
    if errors["Y"][y_column] > UNLIKE:
        return None
    x = read_digits(errors, 0, y_column - SPACE_PX)
    y = read_digits(errors, y_column + GLYPHS["Y"].shape[1] + COLON_PX, strip.shape[1])[:Y_DIGITS]
    return (int(x), int(y)) if x and y else None


def read_digits(errors: Errors, column: int, end: int) -> str:
    """The digits from this column on, up to the end or to what is no digit."""
    text = ""
    while column < end:
        at = {digit: errors[digit][column] for digit in "0123456789" if column < len(errors[digit])}
        digit = min(at, key=lambda digit: at[digit], default="")
        if not digit or at[digit] > UNLIKE:
            break
        text += digit
        column += GLYPHS[digit].shape[1]
    return text


WINDOW = "400x300"  # 12 tiles by 9
TILE_PX = 32
SETTINGS = """(supertux-config
  (show_player_pos #t) (transitions_enabled #f) (pause_on_focusloss #f)
  (video (video "sdl") (vsync #f) (magnification 1)))"""
LEVELS = "/usr/share/games/supertux2/levels"
RESTART_WITHIN_S = 10.0
SETTLE_S = 0.05


class SuperTux(DesktopGameInterface):
    """A level from its beginning. Reward: 0.1 for each tile to the right, what is lost to the left is taken away."""

    def __init__(
        self, level: str = "world1/welcome_antarctica", start: int = 96, goal: int = 8900, deepest: int = 650
    ) -> None:
        """Prepare; the game is started by the first reset.

        Args:
            level: a file below the game's `levels`, without `.stl`.
            start: where Tux begins, pixels to the right.
            goal: where the level ends, pixels to the right.
            deepest: pixels down; below it Tux is dead.
        """
        home = tempfile.mkdtemp(prefix="supertux")  # leaves the settings and scores of the user alone
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        Path(home, "config").write_text(SETTINGS, encoding="utf-8")
        os.environ["ALSOFT_DRIVERS"] = "null"  # no sound
        program = shutil.which("supertux2", path=f"{os.environ['PATH']}:/usr/games") or "supertux2"
        options = ["--userdir", home, "--window", "--geometry", WINDOW, "--renderer", "sdl", "--show-pos"]
        super().__init__(
            title="SuperTux",
            command=[program, *options, f"{LEVELS}/{level}.stl"],
            axes=[("left", "right"), ("", "space")],
            size=(48, 64),
        )
        self._start, self._goal, self._deepest = start, goal, deepest
        self._last_x = start

    def begin_episode(self) -> None:
        """Restart the level by its menu. In the title, and while Tux dies, escape does something else first."""
        until = time.monotonic() + RESTART_WITHIN_S
        while time.monotonic() < until:
            self._press("esc")
            if self._position_now() is not None:
                continue  # this is not the menu, which hides it
            self._press("down")
            self._press("enter")
            position = self._position_now()
            if position is not None and position[0] == self._start:
                self._last_x = self._start
                return
        raise EnvironmentFaultError(f"the level did not begin within {RESTART_WITHIN_S:g} s")

    def _press(self, key: str) -> None:
        self._keyboard.tap(key)
        time.sleep(SETTLE_S)

    def _position_now(self) -> tuple[int, int] | None:
        frame, _ = self._look()
        return read_position(frame)

    def judge(self, frame: NDArray[np.uint8], record: Any) -> tuple[float, bool, dict[str, Any]]:
        x, y = read_position(frame) or (self._last_x, 0)
        tiles = (x - self._last_x) / TILE_PX
        self._last_x = x
        is_over = y > self._deepest or x > self._goal
        return 0.1 * tiles, is_over, {"tiles": (x - self._start) / TILE_PX}
