"""The choice of connections to cut if too many have not proved a key."""

import pytest
from kit.clocks import Clock

from tmrl_like.transport.base import MAX_UNPROVED_CONNECTIONS
from tmrl_like.transport.strangers import Strangers

HOST, OTHER_HOST = "10.0.0.1", "10.0.0.2"


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def strangers(clock):
    return Strangers(clock)


def crowd(strangers, size, host=HOST):
    """Add connections 0, 1, … of a host, or of a network with a place for the number; return those
    that are cut.
    """
    cut = (strangers.add(f"{host} {i}", (host.format(i), i)) for i in range(size))
    return [surplus[0] for surplus in cut if surplus]


def test_of_a_mass_that_dials_at_once_those_go_that_came_last(strangers):
    assert crowd(strangers, MAX_UNPROVED_CONNECTIONS) == []
    assert strangers.add("late", (HOST, 1)) == ("late", (HOST, 1))
    for proved in (f"{HOST} 0", f"{HOST} 7"):
        strangers.remove(proved)
    assert crowd(strangers, 3, OTHER_HOST) == [f"{HOST} {MAX_UNPROVED_CONNECTIONS - 1}"]


def test_who_had_its_time_goes_first_and_the_log_says_so_once(strangers, clock, caplog):
    crowd(strangers, MAX_UNPROVED_CONNECTIONS)
    clock.now = 1.0
    cut = [strangers.add(f"late {i}", (HOST, i)) for i in range(2)]
    assert cut == [(f"{HOST} {i}", (HOST, i)) for i in range(2)]
    told = "more connections than usual prove no key; some of them are cut"
    assert caplog.messages == [told]


@pytest.mark.parametrize(
    ("of_the_crowd", "other"),
    [
        (HOST, OTHER_HOST),
        ("2001:db8::{:x}", "2001:db8:0:1::1"),  # addresses of one network are one crowd
        (HOST, "fe80::1%eth0"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2"),  # IPv4 addresses, as an IPv6 socket gives them
    ],
)
def test_a_crowd_cuts_nobody_elsewhere(strangers, clock, of_the_crowd, other):
    strangers.add("elsewhere", (other, 1))
    clock.now = 1.0
    assert "elsewhere" not in crowd(strangers, 3 * MAX_UNPROVED_CONNECTIONS, of_the_crowd)
    assert "elsewhere" in strangers
