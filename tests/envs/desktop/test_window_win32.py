"""Windows of the Windows desktop, with a stand-in for user32."""

import ctypes
from unittest.mock import Mock

import pytest

from tmrl_like.envs.desktop.desktop_screen import Region
from tmrl_like.envs.desktop.window_win32 import Win32Window
from tmrl_like.errors import EnvironmentAwayError

GAME, OTHER, HIDDEN = 0x1_0002, 0x1_0004, 0x1_0006
BORDER, TITLE_BAR = 8, 31


def fill(reference, *values):
    """Fill the fields of a structure that was passed by reference."""
    for (name, _), value in zip(reference._obj._fields_, values, strict=True):
        setattr(reference._obj, name, value)
    return True


class User32:
    """A desktop with a minimised game, another window that has the focus, and a hidden one."""

    def __init__(self):
        self.names = {GAME: "Mein Spiel é", OTHER: "Editor", HIDDEN: "hidden"}
        self.outer = 100, 200, 640 + 2 * BORDER, 480 + TITLE_BAR + BORDER
        self.iconic, self.focus = True, OTHER
        self.GetForegroundWindow = lambda: self.focus  # may be given a `restype`

    def EnumWindows(self, callback, _):
        return all(callback(handle, None) for handle in self.names)

    def GetWindowTextLengthW(self, window):
        return len(self.names[window.value])

    def GetWindowTextW(self, window, buffer, length):
        buffer.value = self.names[window.value][: length - 1]

    def IsWindowVisible(self, window):
        return window.value != HIDDEN

    def IsWindow(self, window):
        return window.value in self.names

    def IsIconic(self, window):
        return self.iconic

    def ShowWindow(self, window, how):
        self.iconic = how != 9  # SW_RESTORE

    def SetForegroundWindow(self, window):
        self.focus = window.value

    def GetWindowRect(self, window, rect):
        left, top, width, height = self.outer
        return fill(rect, left, top, left + width, top + height)

    def GetClientRect(self, window, rect):
        _, _, width, height = self.outer
        inner = 0, 0, width - 2 * BORDER, height - TITLE_BAR - BORDER
        return fill(rect, *inner) and self.IsWindow(window)

    def ClientToScreen(self, window, point):
        left, top, _, _ = self.outer
        return fill(point, left + BORDER, top + TITLE_BAR)

    def MoveWindow(self, window, *outer_and_repaint):
        *self.outer, _ = outer_and_repaint
        return True


@pytest.fixture
def user32(monkeypatch):
    libraries = {"user32": User32(), "shcore": Mock()}
    monkeypatch.setattr(ctypes, "WinDLL", lambda name, **_: libraries[name], raising=False)
    monkeypatch.setattr(ctypes, "WINFUNCTYPE", lambda *_: lambda function: function, raising=False)
    return libraries["user32"]


@pytest.fixture
def window(user32):
    return Win32Window().open(GAME, "Mein Spiel")


def test_visible_windows_have_their_whole_titles(user32):
    assert Win32Window().titles() == {GAME: "Mein Spiel é", OTHER: "Editor"}


def test_a_minimised_window_is_restored_and_gets_the_focus(window, user32):
    assert not window.has_focus()
    window.raise_and_focus()
    assert window.has_focus()
    assert not user32.iconic


def test_a_region_is_what_is_inside_the_borders_before_and_after_it_is_placed(window):
    assert window.region() == Region(108, 231, 640, 480)
    window.place(Region(0, 0, 320, 240))
    assert window.region() == Region(0, 0, 320, 240)


def test_a_window_that_was_closed_is_a_game_that_is_away(window, user32):
    del user32.names[GAME]
    for look in (window.region, window.has_focus, window.raise_and_focus):
        with pytest.raises(EnvironmentAwayError, match="'Mein Spiel' is gone"):
            look()
