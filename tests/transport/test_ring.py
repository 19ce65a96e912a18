"""Several servers, of which a peer dials one."""

import socket
from collections import Counter

import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.transport import RingLink, addresses_of, connect_to_one
from tmrl_like.transport.ring import host_and_port, in_turn, unknown_host

from .exchange import receive_at, send_of, until


@pytest.mark.parametrize(
    ("hosts", "addresses"),
    [
        ("a.example", ["a.example:7790"]),
        ("a.example:7791", ["a.example:7791"]),
        ("a, b:1", ["a:7790", "b:1"]),
        (("a", "a:7791"), ["a:7790", "a:7791"]),
        (["::1", "[::1]:7791", "[fe80::1%eth0]"], ["[::1]:7790", "[::1]:7791", "[fe80::1%eth0]:7790"]),
    ],
)
def test_an_address_has_the_port_of_all_or_its_own(hosts, addresses) -> None:
    assert [*addresses_of(hosts, 7790)] == addresses
    for address in addresses:
        host, port = host_and_port(address)
        assert [*addresses_of(host, port)] == [address]


def test_a_host_that_this_machine_does_not_know_is_named(monkeypatch) -> None:
    def look_up(host, port):
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    assert unknown_host(["127.0.0.1:1"]) == ""
    assert unknown_host(["127.0.0.1:1", "robto:1"]).startswith("this machine knows no host robto (Name or service not ")


@pytest.mark.parametrize(
    "hosts", ["", [], "0.0.0.0", "[::]:7790", "a:b", "a:65536", "a b", "[::1", "a,", ":7790", ["a", "a:7790"]]
)
def test_what_is_no_address_is_refused_in_one_line(hosts) -> None:
    with pytest.raises(ConfigError, match=r"host is .*; expected"):
        addresses_of(hosts, 7790)


def test_peers_spread_evenly_and_those_of_a_server_that_is_gone_as_well() -> None:
    servers = ["a", "b", "c", "d"]
    orders = [in_turn(servers, f"worker-{i}") for i in range(400)]
    assert all(sorted(order) == servers for order in orders)
    assert set(Counter(order[0] for order in orders).values()) == {100}
    assert min(Counter(order[1] for order in orders if order[0] == "a").values()) > 20
    assert in_turn(servers, "arm") == in_turn(servers, "arm")
    assert len({in_turn(servers, name)[0] for name in ("arm", "crane", "drone", "car", "lift", "boat")}) > 1


def test_a_link_over_several_servers_dials_one_after_the_other(machines) -> None:
    servers = [machines.listen(), machines.listen()]
    peer = connect_to_one(machines.transport, [f"127.0.0.1:{s.address[1]}" for s in servers], "w", machines.keys)
    assert isinstance(peer, RingLink)
    try:
        at = dict(zip([f"127.0.0.1:{s.address[1]}" for s in servers], servers, strict=True))
        for _ in range(3):
            where = peer.where
            send_of(peer, b"here")
            assert bytes(receive_at(at[where]).data) == b"here"
            assert not peer.is_lost
            peer.move_on()
            assert peer.where != where
        at[peer.where].close()
        until(lambda: (peer.receive(0.01), peer.is_lost)[1], "the loss of a connection")
    finally:
        peer.close()
