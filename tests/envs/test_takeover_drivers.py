"""Drivers that read the keyboard of a test's screen, and a gamepad that is a stand-in."""

import os
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from gymnasium import spaces
from kit.boxes import box
from kit.clocks import LoopTime
from kit.keyboards import Keys
from kit.refusals import one_line

from tmrl_like.envs import drivers
from tmrl_like.envs.drivers import ARROWS, GamepadDriver, KeyDriver
from tmrl_like.errors import EnvironmentAwayError

BOX = spaces.Box(np.float32([-1.0, -2.0]), np.float32([3.0, 2.0]))
REST = np.float32([1.0, -1.0])


@pytest.fixture
def keys(monkeypatch):
    keys = Keys()
    monkeypatch.setattr(drivers, "open_keyboard", lambda: keys)
    return keys


def test_keys_that_are_held_add_up_and_the_person_gives_back_a_little_later(keys, monkeypatch):
    monkeypatch.setattr(drivers, "time", clock := LoopTime())
    driver = KeyDriver(BOX, REST, ARROWS | {"w": [0, 1]})
    assert driver(None) is None
    keys.held = {"left", "up", "w"}
    assert driver(None).tolist() == [-1, 2]  # the bounds
    keys.held = {"left", "up", "down"}
    assert driver(None).tolist() == [-1, -1]
    keys.held = {"left", "right"}
    assert driver(None).tolist() == [1, -1]
    keys.held = set()
    clock.now += 0.4
    assert driver(None).tolist() == [1, -1]
    clock.now += 0.2
    assert driver(None) is None
    driver.close()
    assert keys.held is None


def test_keys_are_actions_where_actions_are_numbers_and_the_first_one_counts(keys):
    driver = KeyDriver(spaces.Discrete(3), np.int64(0), {"a": 1, "b": 2})
    for held, answer in (("", None), ("a", 1), ("a b", 1), ("b", 2), ("", 0)):
        keys.held = set(held.split())
        assert driver(None) == answer


def test_keys_are_actions_where_numbers_have_no_bounds(keys):
    driver = KeyDriver(box(np.inf, 2), np.zeros(2, np.float32), {"a": [1.5, 0]})
    keys.held = {"a"}
    answer = driver(None)
    assert (answer.dtype, answer.tolist()) == (np.float32, [1.5, 0.0])


@pytest.mark.parametrize(
    ("space", "keys", "problem"),
    [
        (spaces.MultiDiscrete([3, 3]), ARROWS, "expected of each key an action"),
        (BOX, {"a": 1}, "expected of each key a list"),
        (BOX, {"a": "1"}, "expected of each key a list"),
        (BOX, {"a": [[1]]}, "expected of each key a list"),
        (spaces.Box(-np.inf, np.inf, (2,)), ARROWS, "expected of each key an action"),
    ],
)
def test_keys_that_say_no_action_are_refused_before_anything_is_opened(space, keys, problem):
    with one_line(problem):
        KeyDriver(space, 0, keys)


def test_the_sticks_of_a_gamepad_take_over(monkeypatch):
    pygame = Mock()
    count, pad = pygame.joystick.get_count, pygame.joystick.Joystick.return_value
    monkeypatch.setitem(sys.modules, "pygame", pygame)
    monkeypatch.setattr(drivers, "time", clock := LoopTime())
    monkeypatch.setattr(os, "environ", os.environ.copy())
    os.environ.pop("SDL_VIDEODRIVER", None)
    driver = GamepadDriver(BOX, REST)
    count.return_value = 0
    with pytest.raises(EnvironmentAwayError, match="no gamepad"):
        driver(None)
    assert "SDL_VIDEODRIVER" not in os.environ
    count.return_value = 1
    pad.get_button.return_value, pad.get_axis.side_effect = False, [0.0, 0.0]
    assert driver(None) is None
    pad.get_axis.side_effect = [0.05, -0.5]  # within the dead zone; half up
    assert driver(None).tolist() == [1, 0.5]
    pad.get_button.return_value, pad.get_axis.side_effect = True, [0.0, 0.0]
    clock.now += 1.0
    assert driver(None).tolist() == [1, -1]
    pygame.joystick.Joystick.return_value = other = Mock()  # the first one was unplugged
    other.get_button.return_value, other.get_axis.side_effect = False, [0.05, -0.5]
    assert driver(None).tolist() == [1, 0.5]
    with one_line(r"axes deflect numbers with bounds, and actions are Discrete\(3\)"):
        GamepadDriver(spaces.Discrete(3), 0)


def test_the_road_driver_follows_the_road_for_a_while(monkeypatch):
    pytest.importorskip("Box2D")
    from tmrl_like.envs.racing import RoadDriver, road_driver
    from tmrl_like.envs.racing.racing_game import COASTING

    monkeypatch.setattr(road_driver, "time", clock := LoopTime(0.0))
    space, rest = box(1.0, 2), np.float32([0.0, -0.5])
    driver, scan = RoadDriver(space, rest), np.full((1, 19), 0.1)
    scan[0, 13:] = 1.0  # the road goes to the right
    slow, fast = (np.array([speed, 0, 0, 0]) for speed in (0.0, 1.0))
    assert driver((slow, scan)) is None
    clock.now = 16.0
    steering, pedal = driver((slow, scan))
    assert steering > 0.5
    assert pedal > COASTING > driver((fast, scan))[1]
    with one_line("set env's observation to lidar"):
        driver((slow, np.zeros((1, 64, 64))))
    clock.now = 20.0
    assert driver((slow, scan)) is None
    with one_line("leave out env's inputs"):
        RoadDriver(spaces.Discrete(9), 0)
