"""Bytes between machines: `listen` for the server, `connect` for a peer, over `zmq`, `tlspyo` or
`inproc`.
"""

from __future__ import annotations

from collections.abc import Callable

from tmrl_like.base.options import Port, in_range
from tmrl_like.errors import ConfigError, MissingExtraError
from tmrl_like.transport.addresses import server_address
from tmrl_like.transport.base import (
    Identity,
    PeerLink,
    ServerLink,
    TransportOptions,
    raise_descriptor_limit,
)
from tmrl_like.transport.credentials import KeyFolder

__all__ = [
    "Identity",
    "KeyFolder",
    "PeerLink",
    "ServerLink",
    "TransportOptions",
    "connect",
    "listen",
    "server_address",
]


def listen(
    transport: str, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None
) -> ServerLink:
    """Open the server's side. This also raises the process's limit of open files and connections.

    Raises:
        AddressInUseError: the port is taken.
        TransportError: the address cannot be bound.
        CredentialsError: the server's keys cannot be read.
        ConfigError: there is no such transport, or no such port.
        ShortageError: the system has no threads for it.
    """
    in_range("port", port, Port)
    raise_descriptor_limit()
    return _sides(transport)[0](host, port, keys, options or TransportOptions())


def connect(
    transport: str, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None
) -> PeerLink:
    """Open a peer's side, without waiting for the server.

    Raises:
        CredentialsError: this machine's key cannot be read.
        ConfigError: there is no such transport, or no such port.
        ShortageError: the system has no threads for it.
    """
    in_range("port", port, Port)
    return _sides(transport)[1](host, port, keys, options or TransportOptions())


def _sides(transport: str) -> tuple[Callable[..., ServerLink], Callable[..., PeerLink]]:
    """Return both sides of a transport; its packages are imported only here."""
    if transport == "zmq":
        from tmrl_like.transport.zmq import ZmqPeerLink, ZmqServerLink

        return ZmqServerLink, ZmqPeerLink
    if transport == "tlspyo":
        try:
            from tmrl_like.transport.over_tlspyo import TlspyoPeerLink, TlspyoServerLink
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"the transport tlspyo needs {error.name}: pip install tlspyo"
            ) from None

        return TlspyoServerLink, TlspyoPeerLink
    if transport == "inproc":
        from tmrl_like.transport.inproc import InprocPeerLink, InprocServerLink

        return InprocServerLink, InprocPeerLink
    raise ConfigError(f"there is no transport {transport!r}; choose one of zmq, tlspyo, inproc")
