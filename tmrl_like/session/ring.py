"""Servers that share one key pair. A peer dials one of them, and the next one if that fails."""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Sequence

from tmrl_like.errors import ShortageError, TransportError
from tmrl_like.transport import KeyFolder, PeerLink, TransportOptions, connect
from tmrl_like.transport.addresses import host_and_port
from tmrl_like.wire.messages import share_of

log = logging.getLogger("tmrl_like.session")


class Ring:
    """Servers of which one at a time is dialled. A single server is a ring of one.

    Attributes:
        addresses: addresses of all servers, in the order in which they are dialled.
        link: to the current server.
        is_quiet: the link itself logs whether it is connected, so the session does not.
    """

    def __init__(
        self, addresses: Sequence[str], dial: Callable[[str], PeerLink], is_quiet: bool = False
    ) -> None:
        """Dial the first server; `dial` connects to an address and raises like
        `transport.connect`.
        """
        self.addresses = tuple(addresses)
        self.is_quiet = is_quiet
        self._turn = 0
        self._is_short = False
        self._dial = dial
        self.link = dial(self.where)

    @property
    def where(self) -> str:
        """The address of the current server."""
        return self.addresses[self._turn % len(self.addresses)]

    def move_on(self, farewell: bytes) -> None:
        """Leave the current server with a last message, and dial the next one.

        If there is only one server, the link is kept: it redials by itself. The link is also kept
        if the next one cannot be dialled now, for example because the system has no thread for it;
        the next call tries again.
        """
        if len(self.addresses) == 1:
            return
        self._turn += 1
        try:
            dialled = self._dial(self.where)
        except (ShortageError, TransportError) as error:
            self._turn -= 1
            if not self._is_short:
                log.error("another server is not dialled: %s; trying again", error)
            self._is_short = True
            return
        self.link.send(farewell)
        self.link.close()
        self.link, self._is_short = dialled, False

    def close(self) -> None:
        self.link.close()


def connect_to_one(
    transport: str,
    addresses: Sequence[str],
    name: str,
    keys: KeyFolder,
    options: TransportOptions | None = None,
) -> Ring:
    """Connect to one of several servers (`addresses_of`), chosen by the peer's `name`; raises like
    `transport.connect`.
    """

    def dial(address: str) -> PeerLink:
        return connect(transport, *host_and_port(address), keys, options)

    return Ring(in_turn(addresses, name), dial)


def in_turn(addresses: Sequence[str], name: str) -> list[str]:
    """Return the order in which the peer `name` dials the servers.

    Peers are spread evenly over the servers (`share_of`), and again over the others when a server
    is gone.
    """
    others = list(addresses)
    first = others.pop(share_of(name, len(others)))
    random.Random(name).shuffle(others)
    return [first, *others]


def unknown_host(addresses: Sequence[str]) -> str:
    """Return a sentence about the first host that this machine cannot resolve, or an empty string.

    May take seconds.
    """
    for host, _ in map(host_and_port, addresses):
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            return (
                f"this machine knows no host {host} ({error.strerror}); correct server.host, or "
                "its name service."
            )
    return ""
