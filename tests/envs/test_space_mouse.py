"""A 3D mouse as a driver, with a stand-in for pyspacemouse 2.1."""

import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from kit.boxes import box
from kit.clocks import LoopTime
from kit.refusals import one_line

from tmrl_like.envs import drivers
from tmrl_like.envs.space_mouse import AXES, SpaceMouseDriver
from tmrl_like.errors import EnvironmentAwayError

BOX, REST = box(2.0, 3), np.zeros(3, np.float32)


class Mouse:
    """A device that gives one report per call; like the library, it has one state, which it
    changes.
    """

    def __init__(self):
        self.waiting, self.close = [], Mock()
        self.state = SimpleNamespace(t=-1.0, **dict.fromkeys(AXES, 0.0))

    def read(self):
        if self.waiting:
            vars(self.state).update(self.waiting.pop(0))
            self.state.t += 1.0
        return self.state


@pytest.fixture
def library(monkeypatch):
    library = Mock(**{"open.return_value": Mouse()})
    monkeypatch.setitem(sys.modules, "pyspacemouse", library)
    return library


def test_its_newest_state_drives_while_the_cap_is_moved(library, monkeypatch):
    monkeypatch.setattr(drivers, "time", clock := LoopTime())
    mouse = library.open.return_value
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
    mouse.close.assert_called_once_with()
    library.open.assert_called_once_with(axis_convention=library.AxisConvention.HID_Z_UP)


def test_it_may_be_unplugged_and_plugged_in_again(library):
    gone = Mock(**{"read.side_effect": OSError("the device is gone")})
    none = RuntimeError("No connected or supported devices found.")
    library.open.side_effect = [none, gone, library.open.return_value]
    driver = SpaceMouseDriver(BOX, REST)
    for told in ("no SpaceMouse: plug one in", "the device is gone"):
        with pytest.raises(EnvironmentAwayError, match=told):
            driver(None)
    gone.close.assert_called_once_with()
    assert driver(None) is None


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"axes": ("x", "w")}, "axes is .* expected some of x, y"),
        ({"scale": (1.0,)}, "a number for each of 6 axes"),
    ],
)
def test_what_it_cannot_be_is_one_line(library, options, problem):
    with one_line(problem):
        SpaceMouseDriver(BOX, REST, **options)
