"""A 3D mouse as a driver, with a stand-in for pyspacemouse 2.1."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces
from kit.clocks import LoopTime

from tmrl_like.envs import drivers
from tmrl_like.envs.space_mouse import AXES, SpaceMouseDriver
from tmrl_like.errors import ConfigError, EnvironmentAwayError, MissingExtraError

BOX, REST = spaces.Box(-2.0, 2.0, (3,)), np.zeros(3, np.float32)


class Mouse:
    """A device that gives one report per call; like the library, it has one state, which it
    changes.
    """

    def __init__(self):
        self.waiting, self.is_plugged_in, self.closed = [], True, 0
        self.state = SimpleNamespace(t=-1.0, **dict.fromkeys(AXES, 0.0))

    def open(self, axis_convention):
        assert axis_convention == "z up"
        if not self.is_plugged_in:
            raise RuntimeError("No connected or supported devices found.")
        return self

    def read(self):
        if not self.is_plugged_in:
            raise OSError("the device is gone")
        if self.waiting:
            vars(self.state).update(self.waiting.pop(0))
            self.state.t += 1.0
        return self.state

    def close(self):
        self.closed += 1


@pytest.fixture
def mouse(monkeypatch):
    mouse = Mouse()
    library = SimpleNamespace(open=mouse.open, AxisConvention=SimpleNamespace(HID_Z_UP="z up"))
    monkeypatch.setitem(sys.modules, "pyspacemouse", library)
    return mouse


def test_its_newest_state_drives_while_the_cap_is_moved(mouse, monkeypatch):
    clock = LoopTime()
    monkeypatch.setattr(drivers, "time", clock)
    driver = SpaceMouseDriver(BOX, REST, axes=("x", "z", "yaw"), scale=(1.0, -1.0, 0.5))
    # within the dead zone, and an axis that is not used
    mouse.waiting = [{"x": 0.04, "y": 1.0}]
    assert driver(None) is None
    mouse.waiting = [{"x": 0.1 * k} for k in range(10)] + [{"x": 0.5, "z": 0.25, "yaw": -1.0}]
    assert driver(None).tolist() == [1.0, -0.5, -1.0]
    mouse.waiting = [dict.fromkeys(AXES, 0.0)]
    clock.now += 0.4
    assert driver(None).tolist() == [0.0, 0.0, 0.0]
    clock.now += 0.2
    assert driver(None) is None
    driver.close()
    driver.close()
    assert mouse.closed == 1


def test_it_may_be_unplugged_and_plugged_in_again(mouse):
    mouse.is_plugged_in = False
    driver = SpaceMouseDriver(BOX, REST)
    with pytest.raises(EnvironmentAwayError, match="no SpaceMouse: plug one in"):
        driver(None)
    mouse.is_plugged_in = True
    assert driver(None) is None
    mouse.is_plugged_in = False
    with pytest.raises(EnvironmentAwayError, match="the device is gone"):
        driver(None)
    assert mouse.closed == 1
    mouse.is_plugged_in, mouse.waiting = True, [{"x": 1.0}]
    assert driver(None).tolist() == [2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"axes": ("x", "w")}, "axes is .* expected some of x, y"),
        ({"scale": (1.0,)}, "a number for each of 6 axes"),
    ],
)
@pytest.mark.usefixtures("mouse")
def test_what_it_cannot_be_is_one_line(options, problem):
    with pytest.raises(ConfigError, match=problem):
        SpaceMouseDriver(BOX, REST, **options)


def test_without_its_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspacemouse", None)
    with pytest.raises(MissingExtraError, match="spacemouse"):
        SpaceMouseDriver(BOX, REST)
