"""SuperTux, a jump-and-run game (Debian's package `supertux`), seen through its window and played
with keys.

For a game of your own, adapt the lower half of this file: which window, which keys, how an episode
begins, and what a step is worth. Here the upper half reads that worth from the screen.
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

# The game shows Tux's position as "X:2144 Y:577", always starting at the same pixel. These are its
# digits, and its Y:
FONT = """
.++..#.+ ..## .++.++. .++..#. .++.#.+# ..#+++.+ +.+#... .#...#+ .+#.##. ..#..#. #.++..#
.#....#. .##+ .+..++. .+...#. .#..#+.+ .+#+.... ..#.... ....+#. .+#.#+. .++..#. ##.#+++
.#....#. ..++ ....#.. ....+#. .######. ..++##.. .+..... ...###. ..###.. ..#+##. ###.##.
.#....#. ..++ ...#... ...+.++ ....#... .....++. .#####. ...#+.. .++..#. ...+.#. ###.+..
.++..++. ..++ ..#+... .#+..++ .+..#... .....++. .##..++ ...#... .#...#. .....#. ###+++.
..####.. ...+ .##++#+ ..###+. .+#.#... .+#+##.. .++..#. ..++... .+#+#.. .####+. ###+.+.
"""
BRIGHTNESS = {".": 40, "+": 140, "#": 220}
FIRST_DIGIT = (323, 72)  # column and row of the first character after "X:"
SPACE_PX = 4  # between the last digit and Y
BELOW_TEXT = 90  # first row that shows no text
DARKENED = 250  # brightness that every picture reaches while the game goes on
UNLIKE = 60.0  # maximal RMS difference in brightness between a character and its glyph


def glyphs_of(font: str) -> dict[str, NDArray[np.uint8]]:
    """Return the picture of each character, uint8 [6, columns]."""
    lines = [line.split() for line in font.strip().splitlines()]
    glyphs = {}
    for i, char in enumerate("0123456789Y"):
        glyphs[char] = np.array(
            [[BRIGHTNESS[mark] for mark in line[i]] for line in lines], np.uint8
        )
    return glyphs


GLYPHS = glyphs_of(FONT)


def read_x(frame: NDArray[np.uint8]) -> int | None:
    """Return Tux's position in the level in pixels from the left, or None if the frame does not
    show it (in the menu, for example).
    """
    left, top = FIRST_DIGIT
    strip = cv2.cvtColor(frame[top : top + len(GLYPHS["Y"]), left:], cv2.COLOR_RGB2GRAY)
    errors = {}  # of each character, by column
    for char, glyph in GLYPHS.items():
        errors[char] = np.sqrt(cv2.matchTemplate(strip, glyph, cv2.TM_SQDIFF)[0] / glyph.size)
    end = int(np.argmin(errors["Y"])) - SPACE_PX
    if np.min(errors["Y"]) > UNLIKE:
        return None
    text, column = "", 0
    while column < end:
        digit = min("0123456789", key=lambda digit: errors[digit][column])
        if errors[digit][column] > UNLIKE:
            return None
        text += digit
        column += GLYPHS[digit].shape[1]
    return int(text) if text else None


def is_dying(frame: NDArray[np.uint8]) -> bool:
    """Whether the picture is darkening, which begins half a second after Tux was killed. Otherwise
    snow keeps it bright.
    """
    return int(frame[BELOW_TEXT:].max()) < DARKENED


WINDOW = "400x300"  # 12 tiles by 9
TILE_PX = 32
SETTINGS = """(supertux-config
  (show_player_pos #t) (transitions_enabled #f) (pause_on_focusloss #f)
  (video (video "sdl") (vsync #f) (magnification 1)))"""
LEVELS = "/usr/share/games/supertux2/levels"
RESTART_WITHIN_S = 10.0
SETTLE_S = 0.05


class SuperTux(DesktopGameInterface):
    """Plays a level from its beginning. Reward: 0.1 for each tile to the right, minus 0.1 for each
    tile to the left.
    """

    def __init__(
        self,
        level: str = "world1/welcome_antarctica",
        start: int = 96,
        goal: int = 8900,
        frames: int = 4,
    ) -> None:
        """Prepare the game; the first reset starts it.

        Args:
            level: a file in the game's folder `levels`, without `.stl`.
            start: where Tux begins, in pixels from the left.
            goal: where the level ends, in pixels from the left.
            frames: number of pictures in an observation.
        """
        # keep the user's own settings and scores untouched
        home = tempfile.mkdtemp(prefix="supertux")
        weakref.finalize(self, shutil.rmtree, home, ignore_errors=True)
        Path(home, "config").write_text(SETTINGS, encoding="utf-8")
        program = shutil.which("supertux2", path=f"{os.environ['PATH']}:/usr/games") or "supertux2"
        options = [
            "--userdir",
            home,
            "--window",
            "--geometry",
            WINDOW,
            "--renderer",
            "sdl",
            "--show-pos",
        ]
        super().__init__(
            title="SuperTux",
            command=[program, *options, f"{LEVELS}/{level}.stl"],
            environment={"ALSOFT_DRIVERS": "null"},  # no sound
            axes=[("left", "right"), ("", "space")],
            size=(48, 64),
            frames=frames,
        )
        self._start, self._goal = start, goal
        self._last_x = start

    def begin_episode(self) -> None:
        """Restart the level from its menu. Retry while escape has another effect: on the title
        screen and while Tux is dying.
        """
        until = time.monotonic() + RESTART_WITHIN_S
        while time.monotonic() < until:
            self._press("esc")
            if self._x_now() is not None:
                continue  # the position is visible, so the menu is not open
            self._press("down")
            self._press("enter")
            if self._x_now() == self._start:
                self._last_x = self._start
                return
        raise EnvironmentFaultError(f"the level did not begin within {RESTART_WITHIN_S:g} s")

    def _press(self, key: str) -> None:
        self.tap(key)
        time.sleep(SETTLE_S)

    def _x_now(self) -> int | None:
        frame, _ = self.look()
        return read_x(frame)

    def judge(self, frame: NDArray[np.uint8], record: Any) -> tuple[float, bool, dict[str, Any]]:
        x = read_x(frame)
        x = self._last_x if x is None else x
        tiles = (x - self._last_x) / TILE_PX
        self._last_x = x
        return (
            0.1 * tiles,
            is_dying(frame) or x > self._goal,
            {"tiles": (x - self._start) / TILE_PX},
        )
