"""Addresses of servers as HOST:PORT."""

from __future__ import annotations

import ipaddress
import re
import socket

from tmrl_like.errors import ConfigError

_LABEL = r"[^\s\[\]:.,]{1,63}"
_NAME = rf"{_LABEL}(?:\.{_LABEL})*\.?"
_IPV6 = r"[^\s\[\]:/,]*(?::[^\s\[\]:/,]*){2,}"


def server_address(host: str, port: int) -> tuple[str, int]:
    """Return the host and port to dial for a server; `host` may have any form that
    `host_and_port` takes.

    Raises:
        ConfigError: it is malformed, or no address that can be dialled.
    """
    host, port = host_and_port(host, port)
    if host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"host is {host}, all addresses of a machine, which nobody can dial; expected the "
            "server's name or address as workers and trainer reach it (server.bind is where it "
            "listens)"
        )
    return host, port


def host_and_port(address: str, port: int = 0) -> tuple[str, int]:
    """Split `host`, `host:port`, `::1`, `[::1]` or `[::1]:port`; `port` is used if it has none.

    Raises:
        ConfigError: it is malformed.
    """
    form = rf"({_IPV6})|(?:\[({_IPV6})\]|({_NAME}))(?::(\d{{1,5}}))?"
    parts = re.fullmatch(form, str(address))  # a script may give a list
    if parts is None or int(parts[4] or 0) > 65535:
        raise ConfigError(
            f"host is {address!r}; expected an address or a name, and perhaps a port: "
            "a.example:7790"
        )
    return parts[1] or parts[2] or parts[3], int(parts[4] or port)


def unknown_host(address: str) -> str:
    """Return a sentence if this machine cannot resolve the host of an address, or an empty string.

    May take seconds.
    """
    host, _ = host_and_port(address)
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return (
            f"this machine knows no host {host} ({error.strerror}); correct server.host, or its "
            "name service."
        )
    return ""


def is_address(host: str) -> bool:
    """Whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def written(host: str, port: int | str) -> str:
    """Return an address as HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
