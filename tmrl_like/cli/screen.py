"""`test --show`, `show`: what an environment's `render()` gives while it acts, in a window or in the terminal."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_like.base.files import write_whole
from tmrl_like.base.processes import start_script
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.window import SIZE
from tmrl_like.envs.display import has_display
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import ConfigError

_EVERY_S = 0.04
_FOR_TEXT = 6  # rows of the terminal below the picture


class Screen:
    """Shows the newest picture, 25 times a second, in a thread of its own.

    The window belongs to a process of its own: without a display OpenCV ends the one that asks for it.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        """Begin; `on_close` is called when the user closes the window.

        Raises:
            ConfigError: there is neither a display nor a terminal.
            MissingExtraError: OpenCV cannot be loaded.
        """
        if not has_display() and not has_terminal():
            raise ConfigError("there is neither a display nor a terminal to show it in; --video FILE makes a film")
        self._cv2 = load_opencv()
        self._on_close = on_close
        self._newest: Frame | None = None
        self._closing = threading.Event()
        self._window: subprocess.Popen[bytes] | None = None
        self._height = 0  # of what is drawn in the terminal, in rows
        if has_display():
            script = Path(__file__).with_name("window.py")
            self._window = start_script(script, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._thread = start_thread(self._run, "tmrl-screen")

    def show(self, picture: Frame) -> None:
        """Show a picture, uint8 [H, W, 3] RGB, from now on; does not wait."""
        self._newest = picture

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            picture = self._newest
            if picture is None:
                continue
            if self._window is None:
                self._draw(picture)
                continue
            try:
                write_whole(self._window.stdin, SIZE.pack(*picture.shape[:2]) + picture.tobytes())
            except OSError:  # it has ended
                if self._closing.is_set():
                    return
                if _ended(self._window) == 0:
                    self._on_close()
                    return
                self._window = None
                print("no window can be shown: the display does not answer", flush=True)
                if not has_terminal():
                    return

    def _draw(self, picture: Frame) -> None:
        """Draw in the upper part of the terminal; what is printed scrolls in the lower part."""
        columns, rows = shutil.get_terminal_size()
        text = drawn(picture, columns, max(rows - _FOR_TEXT, 1), self._cv2)
        height = text.count("\n") + 1
        if height != self._height:
            self._height = height
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
            sys.stdout.write(f"\x1b[2J\x1b[{height + 1};{rows}r\x1b[{height + 1};1H")
        sys.stdout.write(f"\x1b7\x1b[H{text}\x1b8")
        sys.stdout.flush()

    def close(self) -> None:
        """Close the window, or leave the terminal as it should stay. Twice is fine."""
        self._closing.set()
        if self._window is not None:
            self._window.kill()
        self._thread.join()
        if self._window is not None:
            _ended(self._window)
        elif has_terminal():
            with contextlib.suppress(OSError):
                sys.stdout.write(f"\x1b[r\x1b[{shutil.get_terminal_size().lines};1H\n")


def _ended(window: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that ends."""
    code = window.wait()
    assert window.stdin is not None
    window.stdin.close()
    return code


def has_terminal() -> bool:
    """Whether standard output is one."""
    return sys.stdout.isatty()


def drawn(picture: Frame, columns: int, rows: int, cv2: Any) -> str:
    """A picture as lines of coloured half blocks, two pixels in each, at most so many columns and rows."""
    height, width = picture.shape[:2]
    scale = min(columns / width, 2 * rows / height)
    size = max(1, int(width * scale)), max(2, int(height * scale) // 2 * 2)
    small = cv2.resize(picture, size, interpolation=cv2.INTER_AREA).tolist()
    lines = []
    for upper, lower in zip(small[::2], small[1::2], strict=True):
        pairs = zip(upper, lower, strict=True)
        lines.append("".join("\x1b[38;2;{};{};{};48;2;{};{};{}m▀".format(*a, *b) for a, b in pairs) + "\x1b[0m")
    return "\n".join(lines)
