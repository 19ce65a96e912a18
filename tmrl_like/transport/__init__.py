"""Bytes between machines: `listen` for the server, `connect` for a peer; `zmq`, `tlspyo` or `inproc` beneath."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tmrl_like.errors import ConfigError, MissingExtraError
from tmrl_like.transport.base import (
    DEFAULT_PORT,
    LOCALHOST,
    DialledLink,
    Identity,
    Incoming,
    PeerLink,
    ServerLink,
    TransportOptions,
    raise_descriptor_limit,
)
from tmrl_like.transport.credentials import KeyFolder
from tmrl_like.transport.ring import RingLink, addresses_of, host_and_port, in_turn

__all__ = [
    "DEFAULT_PORT",
    "LOCALHOST",
    "ONE_THREAD",
    "TRANSPORTS",
    "Identity",
    "Incoming",
    "KeyFolder",
    "PeerLink",
    "ServerLink",
    "TransportOptions",
    "addresses_of",
    "connect",
    "connect_to_one",
    "listen",
]

TRANSPORTS = ("zmq", "tlspyo", "inproc")
ONE_THREAD = "one_thread"
"""As "inproc", of parts that have no threads: their owner calls `turn`."""


def listen(
    transport: str, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None
) -> ServerLink:
    """Open the server's side. This process may have more open files and connections from then on.

    Raises:
        AddressInUseError: the port is taken.
        TransportError: the address cannot be bound.
        CredentialsError: the server's keys cannot be read.
        ConfigError: no such transport.
        ShortageError: there are no threads for it.
    """
    raise_descriptor_limit()
    return _sides(transport)[0](host, port, keys, options or TransportOptions())


def connect(
    transport: str, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None
) -> DialledLink:
    """Open a peer's side. Does not wait for the server.

    Raises:
        CredentialsError: this machine's key cannot be read.
        ConfigError: no such transport.
        ShortageError: there are no threads for it.
    """
    return _sides(transport)[1](host, port, keys, options or TransportOptions())


def connect_to_one(
    transport: str, addresses: Sequence[str], name: str, keys: KeyFolder, options: TransportOptions | None = None
) -> PeerLink:
    """As `connect`, to the one of several servers (`ring.addresses_of`) whose turn it is; `name` is the peer's."""

    def dial(address: str) -> DialledLink:
        return connect(transport, *host_and_port(address), keys, options)

    return dial(addresses[0]) if len(addresses) == 1 else RingLink(in_turn(addresses, name), dial)


_Server: TypeAlias = Callable[[str, int, KeyFolder, TransportOptions], ServerLink]
_Peer: TypeAlias = Callable[[str, int, KeyFolder, TransportOptions], DialledLink]


def _sides(transport: str) -> tuple[_Server, _Peer]:
    """Both sides of a transport; what it is made of is imported here."""
    if transport == "zmq":
        from tmrl_like.transport.zmq import ZmqPeerLink, ZmqServerLink

        return ZmqServerLink, ZmqPeerLink
    if transport == "tlspyo":
        try:
            from tmrl_like.transport.tlspyo import TlspyoPeerLink, TlspyoServerLink
        except ModuleNotFoundError as error:
            raise MissingExtraError(f"the transport tlspyo needs {error.name}: pip install tlspyo") from None

        return TlspyoServerLink, TlspyoPeerLink
    if transport == "inproc":
        from tmrl_like.transport.inproc import InprocPeerLink, InprocServerLink

        return InprocServerLink, InprocPeerLink
    if transport == ONE_THREAD:
        from tmrl_like.transport.inproc import OneThreadPeerLink, OneThreadServerLink

        return OneThreadServerLink, OneThreadPeerLink
    raise ConfigError(f"there is no transport {transport!r}; choose one of {', '.join(TRANSPORTS)}")
