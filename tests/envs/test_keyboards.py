"""Keys on systems without X11, where pynput reports them."""

import enum
import inspect
import sys
from contextlib import closing
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tmrl_like.envs.keyboards import PynputKeyboard


class KeyCode(NamedTuple):
    char: str

    from_char = classmethod(lambda cls, char: cls(char))


Key = enum.Enum("Key", ["ctrl", "ctrl_l", "ctrl_r"])


class Listener:
    """Calls back as pynput 1.8 does, which inspects the signatures of its callbacks."""

    newest = None

    def __init__(self, on_press, on_release):
        self.press, self.release = map(self._wrapped, (on_press, on_release))
        Listener.newest = self

    @staticmethod
    def _wrapped(callback):
        inspect.getfullargspec(callback)
        accepted = len(inspect.signature(callback).parameters)
        return lambda key, is_injected=False: callback(*(key, is_injected)[:accepted])

    def canonical(self, key):
        if isinstance(key, Key):
            return Key[key.name.removesuffix("_l").removesuffix("_r")]
        return key and KeyCode(key.char.lower())

    def start(self):
        self.is_on = True

    def stop(self):
        self.is_on = False


@pytest.fixture
def keyboard(monkeypatch):
    keyboard = SimpleNamespace(
        Controller=SimpleNamespace, Key=Key, KeyCode=KeyCode, Listener=Listener
    )
    monkeypatch.setitem(sys.modules, "pynput", SimpleNamespace(keyboard=keyboard))
    with closing(PynputKeyboard()) as made:
        yield made
    assert not Listener.newest.is_on


def test_a_key_is_down_until_it_is_released_whatever_is_held_with_it(keyboard):
    keys = [keyboard.key(name) for name in ("W", "ctrl", "ctrl_l", "ctrl_r")]
    assert keys[0] == KeyCode("w")
    assert not any(map(keyboard.is_down, keys))
    listener = Listener.newest
    assert listener.is_on
    listener.press(KeyCode("w"))
    listener.press(Key.ctrl_l)
    listener.press(None)  # a key that pynput does not know
    assert [*map(keyboard.is_down, keys)] == [True, True, True, False]
    listener.release(KeyCode("W"))  # Shift is held by now
    listener.release(Key.ctrl_l)
    assert not any(map(keyboard.is_down, keys))
    assert Listener.newest is listener
