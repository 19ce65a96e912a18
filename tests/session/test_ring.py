"""Several servers, to one of which a peer connects."""

import socket
from collections import Counter
from contextlib import closing

import pytest
from transport.exchange import receive_at, send_of

from tmrl_like.errors import ConfigError
from tmrl_like.session.ring import connect_to_one, in_turn, unknown_host
from tmrl_like.transport.addresses import addresses_of, host_and_port


@pytest.mark.parametrize(
    ("hosts", "addresses"),
    [
        ("a.example", ["a.example:7790"]),
        ("a.example:7791", ["a.example:7791"]),
        ("a, b:1", ["a:7790", "b:1"]),
        (("a", "a:7791"), ["a:7790", "a:7791"]),
        (
            ["::1", "[::1]:7791", "[fe80::1%eth0]"],
            ["[::1]:7790", "[::1]:7791", "[fe80::1%eth0]:7790"],
        ),
    ],
)
def test_an_address_has_the_port_of_all_or_its_own(hosts, addresses):
    assert [*addresses_of(hosts, 7790)] == addresses
    for address in addresses:
        host, port = host_and_port(address)
        assert [*addresses_of(host, port)] == [address]


def test_a_host_that_this_machine_does_not_know_is_named(monkeypatch):
    def look_up(host, port):
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    assert unknown_host(["127.0.0.1:1"]) == ""
    assert unknown_host(["127.0.0.1:1", "robto:1"]).startswith(
        "this machine knows no host robto (Name or service not "
    )


@pytest.mark.parametrize(
    "hosts",
    [
        "",
        [],
        "0.0.0.0",
        "[::]:7790",
        "a:65536",
        "a b",
        "a..b",
        "a" * 64,
        "[::1",
        "a,",
        ":7790",
        "tcp://a.example:7790",
        ["a", "a:7790"],
    ],
)
def test_what_is_no_address_is_refused_in_one_line(hosts):
    with pytest.raises(ConfigError, match=r"host is .*; expected"):
        addresses_of(hosts, 7790)


def test_peers_spread_evenly_and_those_of_a_server_that_is_gone_as_well():
    servers = ["a", "b", "c", "d"]
    orders = [in_turn(servers, f"worker-{i}") for i in range(400)]
    assert all(sorted(order) == servers for order in orders)
    firsts = Counter(order[0] for order in orders)
    assert firsts == dict.fromkeys(servers, 100)
    seconds = Counter(order[1] for order in orders if order[0] == "a")
    assert min(seconds[server] for server in "bcd") > 20


def test_a_ring_dials_one_server_after_the_other(machines):
    listening = machines.listen(), machines.listen()
    servers = {f"127.0.0.1:{server.address[1]}": server for server in listening}
    with closing(connect_to_one(machines.transport, list(servers), "w", machines.keys)) as ring:
        for _ in range(3):
            left = servers[ring.where]
            send_of(ring.link, b"here")
            assert receive_at(left).data == b"here"
            ring.move_on(b"bye")
            assert receive_at(left).data == b"bye"
            assert servers[ring.where] is not left
