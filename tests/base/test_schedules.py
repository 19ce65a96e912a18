"""Numbers that follow a schedule."""

import functools

import numpy as np
import pytest

from tmrl_like.base.schedules import ValueSchedule, as_plain, at_the_start, from_plain, value_at
from tmrl_like.errors import ConfigError

POINTS = {0: 8.0, 100: 2.0, 300: 0.5}


@pytest.mark.parametrize(
    ("between", "expected"),
    [
        ("constant", [8.0, 8.0, 8.0, 2.0, 2.0, 0.5, 0.5]),
        ("linear", [8.0, 5.0, 2.06, 2.0, 1.25, 0.5, 0.5]),
        ("exponential", [8.0, 4.0, 2.0 * 4**0.01, 2.0, 1.0, 0.5, 0.5]),
    ],
)
def test_between_two_points_it_goes_as_asked(between, expected):
    schedule = ValueSchedule(dict(reversed(POINTS.items())), between=between)
    assert [schedule.at(x, 7) for x in (0, 50, 99, 100, 200, 300, 10**9)] == pytest.approx(expected)
    assert ValueSchedule(POINTS, between, "training_steps").at(7, 50) == pytest.approx(expected[1])


def test_before_the_first_point_it_is_that_point_s():
    assert ValueSchedule({50: 3.0, 60: 4.0}).at(0, 0) == 3.0
    assert ValueSchedule({50: 3.0}).at(70, 0) == 3.0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"points": {}}, "points is {}; expected a number at each count"),
        ({"points": {-1: 1.0}}, "points is {-1: 1.0}; expected a number at each count, 0 or more"),
        ({"points": {0: float("nan")}}, "points is .*; expected finite numbers"),
        ({"points": {0: 1.0, 9: 0.0}, "between": "exponential"}, "points is .*; expected numbers above 0 with"),
        ({"points": POINTS, "between": "cubic"}, "between is 'cubic'; expected constant, linear or exponential"),
        ({"points": POINTS, "over": "epochs"}, "over is 'epochs'; expected frames or training_steps"),
    ],
)
def test_what_is_no_schedule_is_one_line(arguments, problem):
    with pytest.raises(ConfigError, match=f"^{problem}"):
        ValueSchedule(**arguments)


def test_a_factory_begins_with_what_its_schedules_say():
    def make(a, b=1, c=2):
        return a, b, c

    schedule = ValueSchedule(POINTS)
    assert at_the_start(functools.partial(make, schedule, c=3))() == (8.0, 1, 3)
    assert at_the_start(make) is make
    assert value_at(schedule, 50) == 5.0
    assert value_at("auto", 50) == "auto"


def test_a_checkpoint_holds_plain_values():
    schedule = ValueSchedule(POINTS, "exponential", "training_steps")
    assert from_plain(as_plain(schedule)) == schedule
    assert type(as_plain(schedule)) is dict
    assert (from_plain(0.5), as_plain(None)) == (0.5, None)
    numbers = as_plain(np.float32(0.5)), as_plain(ValueSchedule({np.int64(3): np.float64(0.5)}))["points"][3]
    assert [(type(number), number) for number in numbers] == [(float, 0.5)] * 2
    assert str(schedule) == "{0: 8, 100: 2, 300: 0.5} (exponential, over training_steps)"
