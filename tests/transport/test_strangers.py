"""The choice of connections to cut if too many have not proved a key."""

from __future__ import annotations

import pytest
from kit.clocks import Clock

from tmrl_like.transport.base import MAX_UNPROVED_CONNECTIONS
from tmrl_like.transport.strangers import _SPARED_S, Strangers


@pytest.fixture
def clock():
    return Clock()


def crowd(strangers, size, host="10.0.0.1"):
    """Add a crowd of connections; return those that are cut."""
    cut = (strangers.add(f"{host} {i}", (host, i)) for i in range(size))
    return [surplus[0] for surplus in cut if surplus]


def test_of_a_mass_that_dials_at_once_those_go_that_came_last(clock):
    strangers = Strangers(clock)
    assert crowd(strangers, MAX_UNPROVED_CONNECTIONS) == []
    assert strangers.add("late", ("10.0.0.1", 1)) == ("late", ("10.0.0.1", 1))
    for proved in ("10.0.0.1 0", "10.0.0.1 7"):
        strangers.remove(proved)
    assert crowd(strangers, 3, "10.0.0.2") == [f"10.0.0.1 {MAX_UNPROVED_CONNECTIONS - 1}"]


def test_who_had_its_time_goes_first(clock):
    strangers = Strangers(clock)
    crowd(strangers, MAX_UNPROVED_CONNECTIONS)
    clock.now = 1.1 * _SPARED_S
    cut = [strangers.add(f"late {i}", ("10.0.0.1", i)) for i in range(2)]
    assert cut == [("10.0.0.1 0", ("10.0.0.1", 0)), ("10.0.0.1 1", ("10.0.0.1", 1))]


@pytest.mark.parametrize(
    ("of_the_crowd", "other"),
    [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8:0:1::1"), ("10.0.0.1", "fe80::1%eth0")],
)
def test_a_crowd_cuts_nobody_elsewhere(clock, of_the_crowd, other):
    strangers = Strangers(clock)
    strangers.add("elsewhere", (other, 1))
    clock.now = 1.1 * _SPARED_S
    assert "elsewhere" not in crowd(strangers, 3 * MAX_UNPROVED_CONNECTIONS, of_the_crowd)
    assert "elsewhere" in strangers


def test_addresses_of_one_network_are_one_crowd(clock):
    strangers = Strangers(clock)
    strangers.add("elsewhere", ("2001:db8:0:1::1", 1))
    clock.now = 1.1 * _SPARED_S
    for i in range(2 * MAX_UNPROVED_CONNECTIONS):
        strangers.add(str(i), (f"2001:db8::{i:x}", i))
    assert "elsewhere" in strangers


def test_nothing_is_kept_of_those_that_are_gone(clock):
    strangers = Strangers(clock)
    for _ in range(2):
        crowd(strangers, 3 * MAX_UNPROVED_CONNECTIONS)
        for connection in list(strangers):
            strangers.remove(connection)
            strangers.remove(connection)
    assert not list(strangers)
