"""Vehicles as typed records, and the routes they follow; no simulator, no client."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_like.envs.carla import VehicleAction, VehicleState
from tmrl_like.envs.carla.route import Drive, RouteOptions
from tmrl_like.envs.way import Way
from tmrl_like.errors import DecodingError

numbers = st.floats(allow_nan=False, width=64)
actions = st.builds(
    VehicleAction,
    throttle=st.floats(0, 1),
    steer=st.floats(-1, 1),
    brake=st.floats(0, 1),
    hand_brake=st.booleans(),
    reverse=st.booleans(),
)
states = st.builds(VehicleState, st.integers(0, 2**53), *16 * [numbers])


@given(st.one_of(actions, states))
def test_a_record_rebuilds_exactly_from_its_bytes(record):
    rebuilt = type(record).from_bytes(record.to_bytes())
    assert repr(rebuilt) == repr(record)  # so that types and the sign of zero are the same


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_record_are_refused_in_words(data):
    for kind in (VehicleAction, VehicleState):
        with contextlib.suppress(DecodingError):
            assert len(kind.from_bytes(data).to_bytes()) == len(data)


def test_a_policy_s_action_is_throttle_or_brake_and_steering():
    assert VehicleAction.from_policy(np.array([0.5, -0.25])) == VehicleAction(
        throttle=0.5, steer=-0.25
    )
    assert VehicleAction.from_policy(np.array([-2.0, 3.0])) == VehicleAction(steer=1.0, brake=1.0)


def state(x=0.0, y=0.0, yaw=0.0, time_s=0.0):
    return VehicleState(1, time_s, x, y, 0.0, 0.0, yaw, *10 * [0.0])


ROUTE = np.array([(x, 0.0) for x in np.arange(0, 102, 2.0)])


def drive(points=ROUTE, **task):
    return Drive(RouteOptions(**task), Way(points, 10, 5), state())


def test_a_drive_earns_the_metres_it_gets_on_and_loses_those_it_goes_back():
    on = drive()
    places = [(3.0, 0.5), (9.5, -1.0), (7.5, 0.0), (20.0, 0.0)]
    assert [on.judge(state(x, y), 0.0, 0)[0] for x, y in places] == [3.0, 6.5, -2.0, 12.5]


@pytest.mark.parametrize(
    ("task", "y", "impulse", "judged"),
    [
        ({"collision_penalty": 7.0}, 0.0, 100.0, (-5.0, "collision")),
        ({"off_route_m": 3.0}, 3.5, 0.0, (2.0, "off route")),
    ],
)
def test_penalties_and_ends_are_those_of_the_options(task, y, impulse, judged):
    assert drive(**task).judge(state(2.0, y), impulse, 0) == judged


def test_a_car_that_gets_nowhere_is_stuck_by_the_simulator_s_clock():
    on, places = drive(stuck_after_s=5.0), [(2.0, 4.0), (2.5, 8.9), (2.9, 9.1)]
    ends = [on.judge(state(x, time_s=time_s), 0.0, 0)[1] for x, time_s in places]
    assert ends == ["", "", "stuck"]


def test_what_is_ahead_is_seen_from_the_car():
    on = drive(ahead_m=(5.0, 10.0))
    assert on.route_ahead(state(yaw=90.0)).tolist() == pytest.approx([0, 0, -5, -10], abs=1e-5)
    assert on.route_ahead(state(y=1.0)).tolist() == pytest.approx([5, 10, -1, -1])
