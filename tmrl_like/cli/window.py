"""`test --window`: shows the pictures of an environment's `render()` in a window while it acts."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from tmrl_like.base.children import start_script
from tmrl_like.base.files import write_whole
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.preview import SIZE
from tmrl_like.envs.display import has_display
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import ConfigError

_EVERY_S = 0.04


class Window:
    """Shows the newest picture, 25 times a second, in a thread of its own.

    The window belongs to a process of its own, because OpenCV ends its process if there is no
    display.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        """Open the window; `on_close` is called when the user closes it.

        Raises:
            ConfigError: there is no display.
            MissingExtraError: OpenCV cannot be loaded.
        """
        if not has_display():
            raise ConfigError(
                "there is no display to show it on; `tmrl-like test EXPERIMENT --video FILE` makes "
                "a film"
            )
        load_opencv()
        self._on_close = on_close
        self._newest: Frame | None = None
        self._closing = threading.Event()
        self._process = start_script(
            Path(__file__).with_name("preview.py"), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._thread = start_thread(self._run, "tmrl-window")

    def show(self, picture: Frame) -> None:
        """Show a picture, uint8 [H, W, 3] RGB, from now on; does not wait."""
        self._newest = picture

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            picture = self._newest
            if picture is None:
                continue
            try:
                write_whole(self._process.stdin, SIZE.pack(*picture.shape[:2]) + picture.tobytes())
            except OSError:  # the window's process has ended
                if self._closing.is_set():
                    return
                if self._process.wait() == 0:
                    self._on_close()
                else:
                    print("no window can be shown: the display does not answer")
                return

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._process.kill()
        self._thread.join()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
