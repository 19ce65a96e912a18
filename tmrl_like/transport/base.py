"""The seam under the network: whole messages as bytes, between one server and its peers.

Two sides. `ServerLink` listens; it knows peers by opaque ids and by the name of the key they proved
to hold. `PeerLink` dials out, and goes on dialling for as long as it is open. Neither knows what a
message means. Every transport passes the same contract suite (`tests/transport/test_contract.py`).

What every transport guarantees

- A message arrives whole or not at all, in order within one connection, unchanged.
- Nothing waits: `send` hands over or says no. Only `receive` waits, for as long as it is asked to.
- A message above `max_message_bytes` is refused on both sides.
- Strangers stay few and small: `MAX_UNPROVED_CONNECTIONS`, which can make the server hold 64 MB at
  most.
- What a peer has proved comes with every message; the id of a connection is never that of another
  key's.
- Encrypted and authenticated in both directions (`inproc` never leaves the process).
- What is not guaranteed: a message handed over may be lost when the connection breaks. Numbers and
  acknowledgements above the transport (`wire.messages`) make up for that.
"""

from __future__ import annotations

import contextlib
import queue
import sys
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tmrl_like.base.options import AboveZero, Options, Positive
from tmrl_like.errors import AddressInUseError, CredentialsError, OversizeError, TransportError

T = TypeVar("T")

DEFAULT_PORT = 7790
LOCALHOST = "127.0.0.1"
MAX_UNPROVED_CONNECTIONS = 100
"""Connections that have not proved a key and may be open at a time: times what each may send, it
makes 64 MB.
"""
_DESCRIPTORS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TransportOptions(Options):
    """Every limit of a transport.

    Attributes:
        max_message_bytes: a larger message is refused.
        queue_messages: messages that may wait per connection and direction; then `send` says no. So
            it does at a server when `queue_bytes` wait for the peer.
        handshake_timeout_s: a connection that has not proved its key by then is dropped.
        heartbeat_s: sign of life on an idle connection.
        silent_after_s: a connection without any sign of life for this long is closed.
    """

    max_message_bytes: Positive = 64 << 20
    queue_messages: Positive = 1000
    handshake_timeout_s: AboveZero = 5.0
    heartbeat_s: AboveZero = 1.0
    silent_after_s: AboveZero = 5.0

    @property
    def queue_bytes(self) -> int:
        """Bytes that may wait per connection and direction: four messages of the maximum size."""
        return 4 * self.max_message_bytes

    def check_size(self, size_bytes: int) -> None:
        """Compare the size of a message with the limit.

        Raises:
            OversizeError: it is above `max_message_bytes`.
        """
        if size_bytes > self.max_message_bytes:
            raise OversizeError(
                f"a message of {size_bytes} bytes; at most {self.max_message_bytes} are allowed "
                "(transport option max_message_bytes)"
            )


@dataclass(frozen=True)
class Identity:
    """What a peer proved: the name of its key and the roles that the key may play."""

    name: str
    roles: tuple[str, ...]


REVOKED = Identity("revoked", ())
"""Of a connection whose key was valid when it was made and is not any more. It may play no role."""


@dataclass(frozen=True)
class Incoming:
    """A message from a peer. `peer` names the connection, not the process: a reconnect has
    another.
    """

    peer: bytes
    identity: Identity
    data: bytes | memoryview


def cannot_listen(host: str, port: int, taken: bool, why: object) -> TransportError:
    """What a server raises that finds its port taken, or has another reason."""
    if not taken:
        return TransportError(f"cannot listen on {host}:{port}: {why}")
    return AddressInUseError(
        f"port {port} on {host} is taken: another server runs there, or choose another port "
        "(--server.port)"
    )


def key_refused(where: str) -> CredentialsError:
    """What a peer raises whose key the server does not know."""
    return CredentialsError(
        f"the server at {where} refuses this machine's key: on the server's machine run "
        "`tmrl-like keys invite NAME`, then here `tmrl-like keys join -`"
    )


def other_server(where: str) -> CredentialsError:
    """What a peer raises that found another server, or none that speaks its protocol."""
    return CredentialsError(
        f"what listens at {where} is not the server that this machine's key is for: check "
        "the address, or join that server with a line from its `tmrl-like keys invite NAME`"
    )


def next_in(inbox: queue.SimpleQueue[T], timeout_s: float) -> T | None:
    """The next thing in a queue; None when `timeout_s` passed without one."""
    try:
        return inbox.get(timeout=timeout_s)
    except queue.Empty:
        return None


def raise_descriptor_limit() -> None:
    """Let this process have as many descriptors as it may: a server needs one per connection.

    The soft limit of many systems is 256 or 1,024; Windows has none.
    """
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(ValueError, OSError):  # macOS: not above what the kernel has
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ServerLink(Protocol):
    """The listening side. Use it from one thread; `wake` and `close` may come from any."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on; the real port where 0 was asked for."""

    def receive(self, timeout_s: float) -> Incoming | None:
        """Return the next message; None when `timeout_s` passed without one or `wake` was called.

        Messages of peers without a valid key never get here. A connection whose key was revoked
        after it was made is closed, or its messages come with the identity `REVOKED`, to be
        answered with the reason.
        """

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        """Hand a message over. False: the peer is gone or its queue is full, and nothing was sent.

        Raises:
            OversizeError: the message is above `max_message_bytes`.
        """

    def forget(self, peer: bytes) -> None:
        """Drop what is kept about a connection that is not used any more.

        A peer that speaks again all the same is known again.
        """

    def wake(self) -> None:
        """Make a waiting `receive` return. Any thread."""

    def close(self) -> None:
        """Stop listening and free the port. Twice is fine."""


class PeerLink(Protocol):
    """The dialling side. Use it from one thread; `wake` may come from any."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be broken, or could not be made; that it is silent may
        not be known.
        """

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        """Return the next message; None when `timeout_s` passed without one or `wake` was called.

        Raises:
            CredentialsError: the server refused this key, or proved to be another server than the
                key is for. The link is of no more use.
        """

    def send(self, data: bytes) -> bool:
        """Hand a message over. False: the queue is full (the server is away or slow); nothing was
        sent.

        Raises:
            OversizeError: the message is above `max_message_bytes`.
        """

    def wake(self) -> None:
        """Make a waiting `receive` return. Any thread."""

    def close(self) -> None:
        """Close; what was handed over is given a moment to leave. Twice is fine."""
