"""Connections that have proved no key yet: how many there may be, and which one goes where there are more."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from tmrl_like.transport.base import MAX_UNPROVED_CONNECTIONS

C = TypeVar("C")
Address: TypeAlias = tuple[Any, ...]  # as a socket gives it: the host comes first

_SPARED_S = 0.5  # what a handshake may take on a slow link, or at a server that very many dial at once


class Strangers(Generic[C]):
    """Keeps them few. Of the network that has most of them the oldest goes, once it had its time for a handshake.

    While all are younger the newest goes, and dials again: where a thousand dial at once, those that are in the middle
    of a handshake get through it. Networks are IPv4 addresses, and IPv6 networks of 64 bits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none; `clock` is in seconds."""
        self._clock = clock
        self._addresses: dict[C, Address] = {}
        self._since: dict[str, dict[C, float]] = {}  # by network; the oldest first

    def add(self, connection: C, address: Address) -> tuple[C, Address] | None:
        """A connection was made; returns the one that has to be cut for it, which does not count any more."""
        self.remove(connection)
        self._addresses[connection] = address
        crowd = self._since.setdefault(_network(address), {})
        crowd[connection] = now = self._clock()
        if len(self._addresses) <= MAX_UNPROVED_CONNECTIONS:
            return None
        most = max(map(len, self._since.values()))
        largest = [crowd for crowd in self._since.values() if len(crowd) == most]
        oldest, since = next(iter(largest[0].items()))
        surplus = oldest if now - since > _SPARED_S else next(reversed(largest[-1]))
        return surplus, self.remove(surplus)

    def remove(self, connection: C) -> Address:
        """It has proved a key, or is gone; returns its address, which is empty where there is no such connection."""
        address = self._addresses.pop(connection, ())
        if address:
            crowd = self._since[_network(address)]
            del crowd[connection]
            if not crowd:
                del self._since[_network(address)]
        return address

    def __iter__(self) -> Iterator[C]:
        return iter(self._addresses)


def _network(address: Address) -> str:
    host = ipaddress.ip_address(address[0].partition("%")[0])
    is_of_64_bits = isinstance(host, ipaddress.IPv6Address) and not host.ipv4_mapped
    return str(ipaddress.ip_network((host, 64), strict=False) if is_of_64_bits else host)
