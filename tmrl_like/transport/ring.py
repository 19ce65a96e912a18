"""Several servers with one key pair, of which a peer dials one, and the next one when that is of no use."""

from __future__ import annotations

import logging
import random
import re
import socket
import zlib
from collections.abc import Callable, Sequence

from tmrl_like.errors import ConfigError, ShortageError
from tmrl_like.transport.base import DialledLink

log = logging.getLogger("tmrl_like.link")


class RingLink:
    """Dials one of several servers, and the next one when it is asked to. See `PeerLink`.

    Attributes:
        where: the address of the server that it dials.
        addresses: of all of them, in the order of their turns.
    """

    def __init__(self, addresses: Sequence[str], dial: Callable[[str], DialledLink]) -> None:
        """Dial the first; `dial` opens a connection, and raises as `connect`."""
        self.addresses = tuple(addresses)
        self._turn = 0
        self._is_short = False
        self._dial = dial
        self._link = dial(self.where)

    @property
    def where(self) -> str:
        return self.addresses[self._turn % len(self.addresses)]

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be broken, or was not made; one that is silent may not be known to be."""
        return self._link.is_lost

    def move_on(self) -> None:
        """Leave the server, and dial the next one; where there is no thread for that, stay, until the next call."""
        self._turn += 1
        try:
            dialled = self._dial(self.where)
        except ShortageError as error:
            self._turn -= 1
            if not self._is_short:
                log.error("another server is not dialled: %s; trying again", error)
            self._is_short = True
            return
        self._link.close()
        self._link, self._is_short = dialled, False

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        """Raises CredentialsError as any `PeerLink`; another server may take the key all the same."""
        return self._link.receive(timeout_s)

    def send(self, data: bytes) -> bool:
        return self._link.send(data)

    def wake(self) -> None:
        self._link.wake()

    def close(self) -> None:
        self._link.close()


def addresses_of(hosts: str | Sequence[str], port: int) -> tuple[str, ...]:
    """Servers as HOST:PORT, from a list, or text with commas, of `host`, `host:port`, `::1` and `[::1]:port`.

    Raises:
        ConfigError: no address at all, one that is malformed, or one that is there twice.
    """
    hosts = hosts.split(",") if isinstance(hosts, str) else hosts
    found: dict[str, None] = {}
    for text in hosts:
        host, own_port = host_and_port(text.strip(), port)
        if host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"host is {host}, all addresses of a machine, which nobody can dial; expected the server's name or "
                "address as workers and trainer reach it (server.bind is where it listens)"
            )
        found[f"[{host}]:{own_port}" if ":" in host else f"{host}:{own_port}"] = None
    if len(found) < len(hosts) or not hosts:
        raise ConfigError(f"host is {', '.join(hosts) or 'an empty list'}; expected servers, each of them once")
    return tuple(found)


def host_and_port(address: str, port: int = 0) -> tuple[str, int]:
    """Take `host`, `host:port`, `::1`, `[::1]` or `[::1]:port` apart; ConfigError: malformed."""
    if re.fullmatch(r"[^\s\[\]:]*(:[^\s\[\]:]*){2,}", address):
        return address, port
    parts = re.fullmatch(r"(?:\[([^\s\[\]]+)\]|([^\s\[\]:]+))(?::(\d{1,5}))?", address)
    if parts is None or int(parts[3] or 0) > 65535:
        raise ConfigError(f"host is {address!r}; expected an address or a name, and perhaps a port: a.example:7790")
    return parts[1] or parts[2], int(parts[3] or port)


def unknown_host(addresses: Sequence[str]) -> str:
    """A sentence about the first address whose host this machine cannot find; empty: it finds all. May take seconds."""
    for host, _ in map(host_and_port, addresses):
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            return f"this machine knows no host {host} ({error.strerror}); correct server.host, or its name service."
    return ""


def in_turn(addresses: Sequence[str], name: str) -> list[str]:
    """The order in which a peer dials servers: peers spread evenly, and so do those whose server is gone.

    A number at the end of the name counts: worker-1, worker-2, … begin at one server after the other.
    """
    stem, number = re.fullmatch(r"(.*?)(\d*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    others = list(addresses)
    first = others.pop((zlib.crc32(stem.encode()) + int(number or 0)) % len(others))
    random.Random(name).shuffle(others)
    return [first, *others]
