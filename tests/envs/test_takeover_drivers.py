"""Drivers that read the keyboard of a test's screen, and a gamepad that is a stand-in."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from kit.keyboards import Keys

from tmrl_like.envs import drivers
from tmrl_like.envs.drivers import GamepadDriver, KeyDriver, deflected
from tmrl_like.errors import ConfigError, EnvironmentAwayError

BOX = spaces.Box(np.array([-1.0, -2.0], np.float32), np.array([3.0, 2.0], np.float32))
REST = np.array([1.0, -1.0], np.float32)


@pytest.mark.parametrize(
    ("deflection", "action"),
    [
        ((), [1, -1]),
        ([1], [3, -1]),
        ([-0.5, 0.5], [0, 0.5]),
        ([7, -7], [3, -2]),
    ],
)
def test_a_deflection_leads_from_the_default_action_to_the_bounds(deflection, action):
    found = deflected(deflection, BOX, REST)
    assert found.tolist() == action
    assert BOX.contains(found)


@pytest.fixture
def keys(monkeypatch):
    keys = Keys()
    monkeypatch.setattr(drivers, "open_keyboard", lambda: keys)
    return keys


def test_keys_that_are_held_add_up_and_the_person_gives_back_a_little_later(keys, monkeypatch):
    now = 100.0
    monkeypatch.setattr(drivers, "time", SimpleNamespace(monotonic=lambda: now))
    driver = KeyDriver(BOX, REST)
    assert driver(None) is None
    keys.held = {"left", "up"}
    assert driver(None).tolist() == [-1, 2]
    keys.held = {"left", "right"}
    assert driver(None).tolist() == [1, -1]
    keys.held, now = set(), now + 0.4
    assert driver(None).tolist() == [1, -1]
    now += 0.2
    assert driver(None) is None
    driver.close()
    assert keys.held is None


def test_one_key_takes_over_and_gives_back_and_numbers_are_actions(keys):
    driver = KeyDriver(spaces.Discrete(3), np.int64(0), {"a": 1, "b": 2}, toggle="f8")
    script = (("a", None), ("f8", 0), ("f8 a", 1), ("a b", 1), ("b", 2), ("", 0), ("f8", None))
    for held, answer in (*script, ("b", None)):
        keys.held = set(held.split())
        assert driver(None) == answer


@pytest.mark.parametrize(
    ("space", "keys", "problem"),
    [
        (spaces.Discrete(3), {"a": 3}, "expected of each key an action"),
        (spaces.MultiDiscrete([3, 3]), drivers.ARROWS, "expected of each key an action"),
        (BOX, {"a": 1}, "expected of each key a list"),
        (BOX, {"a": "1"}, "expected of each key a list"),
        (BOX, {"a": [[1]]}, "expected of each key a list"),
        (
            spaces.Box(-np.inf, np.inf, (2,)),
            drivers.ARROWS,
            "give each key an action|no deflections",
        ),
    ],
)
def test_keys_that_say_no_action_are_refused_before_anything_is_opened(space, keys, problem):
    with pytest.raises(ConfigError, match=problem):
        KeyDriver(space, 0, keys)


class Pad:
    """A stand-in for a gamepad and for pygame."""

    def __init__(self):
        self.axes, self.button, self.is_plugged_in = [0.0, 0.0], False, True
        nothing = SimpleNamespace(init=lambda: None, pump=lambda: None)
        self.display = self.event = nothing
        count = lambda: int(self.is_plugged_in)  # noqa: E731
        self.joystick = SimpleNamespace(
            init=lambda: None, get_count=count, Joystick=lambda number: self
        )

    def get_axis(self, axis):
        return self.axes[axis]

    def get_button(self, button):
        return self.button


def test_the_sticks_of_a_gamepad_take_over(monkeypatch):
    pad = Pad()
    monkeypatch.setitem(sys.modules, "pygame", pad)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("SDL_VIDEODRIVER", None)
    driver = GamepadDriver(BOX, REST)
    assert driver(None) is None
    pad.axes = [0.05, -0.5]  # within the dead zone; half up
    assert driver(None).tolist() == [1, 0.5]
    pad.axes, pad.button = [0.0, 0.0], True
    assert driver(None).tolist() == [1, -1]
    pad.is_plugged_in = False
    with pytest.raises(EnvironmentAwayError, match="no gamepad"):
        driver(None)
    assert "SDL_VIDEODRIVER" not in os.environ
    pad.is_plugged_in = True
    assert driver(None).tolist() == [1, -1]


def test_the_road_driver_follows_the_road_for_a_while(monkeypatch):
    pytest.importorskip("Box2D")
    from tmrl_like.envs.racing import RoadDriver, road_driver

    now = 0.0
    monkeypatch.setattr(road_driver, "time", SimpleNamespace(monotonic=lambda: now))
    driver = RoadDriver(spaces.Box(-1.0, 1.0, (2,)), np.array([0.0, -0.5], np.float32))
    scan = np.full((1, 19), 0.1, np.float32)
    scan[0, 13:] = 1.0  # the road goes to the right
    obs = (np.zeros(4, np.float32), scan)
    assert driver(obs) is None
    now = 16.0
    steering, pedal = driver(obs).tolist()
    assert steering > 0.5
    assert pedal > -0.5
    fast = (np.array([1.0, 0, 0, 0], np.float32), scan)
    assert driver(fast)[1] < -0.5
    with pytest.raises(ConfigError, match="set env's observation to lidar"):
        driver((fast[0], np.zeros((1, 64, 64), np.uint8)))
    now = 20.0
    assert driver(obs) is None
    with pytest.raises(ConfigError, match="every_s is 0; expected more than 0"):
        RoadDriver(spaces.Box(-1.0, 1.0, (2,)), np.array([0.0, -0.5], np.float32), every_s=0)
    with pytest.raises(ConfigError, match="leave out env's inputs"):
        RoadDriver(spaces.Discrete(9), 0)
