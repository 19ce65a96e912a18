"""Windows of the Windows desktop, through user32."""

from __future__ import annotations

import ctypes
from ctypes import wintypes
from typing import Any

from tmrl_like.envs.desktop.desktop_screen import Region
from tmrl_like.errors import EnvironmentAwayError

_RESTORE = 9  # SW_RESTORE
_PER_MONITOR_AWARE = 2


class Win32Window:
    """The windows of the desktop, with the methods of `window_x11.X11Window`."""

    def __init__(self) -> None:
        self._user32: Any = ctypes.WinDLL("user32", use_last_error=True)  # type: ignore[attr-defined,unused-ignore]
        self._user32.GetForegroundWindow.restype = ctypes.c_void_p
        shcore: Any = ctypes.WinDLL("shcore")  # type: ignore[attr-defined,unused-ignore]
        # coordinates in pixels of the screen, as the grabber uses them
        shcore.SetProcessDpiAwareness(_PER_MONITOR_AWARE)

    def titles(self) -> dict[int, str]:
        found: dict[int, str] = {}
        callback = ctypes.WINFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p)  # type: ignore[attr-defined,unused-ignore]

        def add(handle: int, _: int) -> bool:
            length = self._user32.GetWindowTextLengthW(ctypes.c_void_p(handle))
            if length and self._user32.IsWindowVisible(ctypes.c_void_p(handle)):
                title = ctypes.create_unicode_buffer(length + 1)
                self._user32.GetWindowTextW(ctypes.c_void_p(handle), title, length + 1)
                found[handle] = title.value
            return True

        self._user32.EnumWindows(callback(add), None)
        return found

    def open(self, handle: int, title: str) -> Win32Window:
        self._number, self._title, self._handle = handle, title, ctypes.c_void_p(handle)
        return self

    def region(self) -> Region:
        rect, corner = wintypes.RECT(), wintypes.POINT()
        self._check(self._user32.GetClientRect(self._handle, ctypes.byref(rect)))
        self._check(self._user32.ClientToScreen(self._handle, ctypes.byref(corner)))
        return Region(corner.x, corner.y, rect.right, rect.bottom)

    def place(self, region: Region) -> None:
        outer, inner = wintypes.RECT(), self.region()
        self._check(self._user32.GetWindowRect(self._handle, ctypes.byref(outer)))
        self._check(
            self._user32.MoveWindow(
                self._handle,
                region.left - (inner.left - outer.left),
                region.top - (inner.top - outer.top),
                region.width + (outer.right - outer.left - inner.width),
                region.height + (outer.bottom - outer.top - inner.height),
                True,
            )
        )

    def has_focus(self) -> bool:
        self._check(self._user32.IsWindow(self._handle))
        return bool(self._user32.GetForegroundWindow() == self._number)

    def raise_and_focus(self) -> None:
        self._check(self._user32.IsWindow(self._handle))
        if self._user32.IsIconic(self._handle):
            self._user32.ShowWindow(self._handle, _RESTORE)
        self._user32.SetForegroundWindow(self._handle)

    def _check(self, done: int) -> None:
        if not done:
            raise EnvironmentAwayError(f"the game's window {self._title!r} is gone")

    def close(self) -> None:
        """Do nothing; there is nothing to release."""
