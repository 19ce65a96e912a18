"""Addresses of servers as HOST:PORT."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from tmrl_like.errors import ConfigError

_LABEL = r"[^\s\[\]:.]{1,63}"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*\.?"
_IPV6 = r"[^\s\[\]:/]*(?::[^\s\[\]:/]*){2,}"


def addresses_of(hosts: str | Sequence[str], port: int) -> tuple[str, ...]:
    """Return the addresses of servers as HOST:PORT.

    `hosts` is a list or a comma-separated text of `host`, `host:port`, `::1` and `[::1]:port`;
    `port` is used for those without one.

    Raises:
        ConfigError: there is no address, or one is malformed or given twice.
    """
    hosts = hosts.split(",") if isinstance(hosts, str) else hosts
    found = []
    for text in hosts:
        host, own_port = host_and_port(text.strip(), port)
        if host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"host is {host}, all addresses of a machine, which nobody can dial; expected the "
                "server's name or address as workers and trainer reach it (server.bind is where it "
                "listens)"
            )
        found.append(f"{bracketed(host)}:{own_port}")
    if not found or len(set(found)) < len(found):
        raise ConfigError(
            f"host is {', '.join(hosts) or 'an empty list'}; expected servers, each of them once"
        )
    return tuple(found)


def host_and_port(address: str, port: int = 0) -> tuple[str, int]:
    """Split `host`, `host:port`, `::1`, `[::1]` or `[::1]:port`; raise ConfigError if malformed."""
    parts = re.fullmatch(rf"({_IPV6})|(?:\[({_IPV6})\]|({_NAME}))(?::(\d{{1,5}}))?", address)
    if parts is None or int(parts[4] or 0) > 65535:
        raise ConfigError(
            f"host is {address!r}; expected an address or a name, and perhaps a port: "
            "a.example:7790"
        )
    return parts[1] or parts[2] or parts[3], int(parts[4] or port)


def is_address(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def bracketed(host: str) -> str:
    """Return a host in the form that it has before a colon and a port."""
    return f"[{host}]" if ":" in host else host
