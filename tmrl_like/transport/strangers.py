"""A limit on connections that have not proved a key yet, and the choice of which one to cut."""

from __future__ import annotations

import ipaddress
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from tmrl_like.transport.base import MAX_UNPROVED_CONNECTIONS

log = logging.getLogger(__name__)

C = TypeVar("C")
Address: TypeAlias = tuple[Any, ...]  # as a socket gives it: the host comes first

# time for a handshake on a slow link, or at a server that many peers dial at once
_SPARED_S = 0.5


class _Stranger(NamedTuple):
    address: Address
    network: str
    since: float


class Strangers(Generic[C]):
    """Limits the number of connections that have not proved a key.

    When there are too many, the oldest connection of the network with most of them is cut, if it
    has had time for a handshake. If all are younger, the newest is cut and dials again: when a
    thousand peers dial at once, those in the middle of a handshake can complete it. A network is an
    IPv4 address, or an IPv6 network of 64 bits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without connections; `clock` is in seconds."""
        self._clock = clock
        self._all: dict[C, _Stranger] = {}  # the oldest first
        self._has_warned = False

    def add(self, connection: C, address: Address) -> tuple[C, Address] | None:
        """Add a new connection; return the one to be cut for it, which is removed, or None."""
        now = self._clock()
        self._all[connection] = _Stranger(address, _network(address[0]), now)
        if len(self._all) <= MAX_UNPROVED_CONNECTIONS:
            return None
        if not self._has_warned:
            self._has_warned = True
            log.warning("more connections than usual prove no key; some of them are cut")
        crowds = Counter(stranger.network for stranger in self._all.values())
        largest = max(crowds.values())
        crowd = [
            each for each, stranger in self._all.items() if crowds[stranger.network] == largest
        ]
        had_its_time = now - self._all[crowd[0]].since > _SPARED_S
        surplus = crowd[0] if had_its_time else crowd[-1]
        return surplus, self._all.pop(surplus).address

    def remove(self, connection: C) -> None:
        """Remove a connection that has proved a key or is gone."""
        self._all.pop(connection, None)

    def __iter__(self) -> Iterator[C]:
        return iter(self._all)


def _network(host: str) -> str:
    address = ipaddress.ip_address(host)
    is_of_64_bits = isinstance(address, ipaddress.IPv6Address) and not address.ipv4_mapped
    return str(ipaddress.ip_network((address, 64), strict=False) if is_of_64_bits else address)
