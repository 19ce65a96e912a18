"""Addresses of servers."""

import socket

import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.transport.addresses import host_and_port, server_address, unknown_host, written


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("a.example", "a.example:7790"),
        ("a.example:7791", "a.example:7791"),
        ("::1", "[::1]:7790"),
        ("[::1]:7791", "[::1]:7791"),
        ("[fe80::1%eth0]", "[fe80::1%eth0]:7790"),
    ],
)
def test_an_address_has_the_usual_port_or_its_own(host, address):
    assert written(*server_address(host, 7790)) == address
    assert written(*host_and_port(address)) == address


def test_a_host_that_this_machine_does_not_know_is_named(monkeypatch):
    def look_up(host, port):
        if host != "127.0.0.1":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    assert unknown_host("127.0.0.1:1") == ""
    assert unknown_host("robto:1").startswith(
        "this machine knows no host robto (Name or service not "
    )


@pytest.mark.parametrize(
    "host",
    [
        "",
        "0.0.0.0",
        "[::]:7790",
        "a:65536",
        "a..b",
        "a" * 64,
        "[::1",
        "::1,::2",
        ":7790",
        "tcp://a.example:7790",
        ["a.example", "b.example"],
    ],
)
def test_what_is_no_address_is_refused_in_one_line(host):
    with pytest.raises(ConfigError, match=r"host is .*; expected"):
        server_address(host, 7790)
