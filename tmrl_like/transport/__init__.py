"""Bytes between machines: `listen` for the server, `connect` for a peer; `zmq`, `tlspyo` or `inproc` beneath."""

from __future__ import annotations

from tmrl_like.errors import ConfigError
from tmrl_like.transport.base import (
    DEFAULT_PORT,
    LOCALHOST,
    Identity,
    Incoming,
    PeerLink,
    ServerLink,
    TransportOptions,
    raise_descriptor_limit,
)
from tmrl_like.transport.credentials import KeyFolder

__all__ = [
    "DEFAULT_PORT",
    "LOCALHOST",
    "TRANSPORTS",
    "Identity",
    "Incoming",
    "KeyFolder",
    "PeerLink",
    "ServerLink",
    "TransportOptions",
    "connect",
    "listen",
]

TRANSPORTS = ("zmq", "tlspyo", "inproc")


def listen(
    transport: str, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None
) -> ServerLink:
    """Open the server's side. This process may have more open files and connections from then on.

    Raises:
        AddressInUseError: the port is taken.
        CredentialsError: the server's keys cannot be read.
        ConfigError: no such transport.
    """
    raise_descriptor_limit()
    if transport == "zmq":
        from tmrl_like.transport.zmq import ZmqServerLink

        return ZmqServerLink(host, port, keys, options)
    if transport == "tlspyo":
        from tmrl_like.transport.tlspyo import TlspyoServerLink

        return TlspyoServerLink(host, port, keys, options)
    if transport == "inproc":
        from tmrl_like.transport.inproc import InprocServerLink

        return InprocServerLink(host, port, options)
    raise _unknown(transport)


def connect(transport: str, host: str, port: int, keys: KeyFolder, options: TransportOptions | None = None) -> PeerLink:
    """Open a peer's side. Does not wait for the server.

    Raises:
        CredentialsError: this machine's key cannot be read.
        ConfigError: no such transport.
    """
    if transport == "zmq":
        from tmrl_like.transport.zmq import ZmqPeerLink

        return ZmqPeerLink(host, port, keys.peer_keys(), options)
    if transport == "tlspyo":
        from tmrl_like.transport.tlspyo import TlspyoPeerLink

        return TlspyoPeerLink(host, port, keys.peer_keys(), options)
    if transport == "inproc":
        from tmrl_like.transport.inproc import InprocPeerLink

        return InprocPeerLink(host, port, options)
    raise _unknown(transport)


def _unknown(transport: str) -> ConfigError:
    return ConfigError(f"there is no transport {transport!r}; choose one of {', '.join(TRANSPORTS)}")
