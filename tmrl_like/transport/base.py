"""The interface of transports: whole messages as bytes, between one server and its peers.

There are two sides. `ServerLink` listens; it identifies peers by opaque ids and by the name of the
key that they proved to hold. `PeerLink` dials out, and keeps dialling for as long as it is open.
Neither interprets messages. Every transport passes the same contract suite
(`tests/transport/test_contract.py`).

What every transport guarantees

- A message arrives whole or not at all, unchanged, and in order within one connection.
- `send` never waits: it hands the message over or returns False. Only `receive` waits, up to its
  timeout.
- A message above `max_message_bytes` is refused on both sides.
- Connections without a proved key are limited to `MAX_UNPROVED_CONNECTIONS`, which together can
  make the server hold at most 64 MB.
- Every message comes with the identity that its peer has proved; the id of a connection is never
  reused for another key.
- Traffic is encrypted and authenticated in both directions (`inproc` never leaves the process).
- Delivery is not guaranteed: a message handed over may be lost when the connection breaks. Numbers
  and acknowledgements above the transport (`wire.messages`) make up for that.
"""

from __future__ import annotations

import contextlib
import queue
import sys
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeVar

from msgspec import Meta

from tmrl_like.base.options import Options, Positive
from tmrl_like.errors import AddressInUseError, CredentialsError, OversizeError, TransportError

T = TypeVar("T")
_UpToADay = Annotated[float, Meta(gt=0, le=86_400)]  # seconds

LOCALHOST = "127.0.0.1"
MAX_UNPROVED_CONNECTIONS = 90
"""Maximum number of open connections that have not proved a key. With what each may send, and what
libzmq needs for those that are just being cut, this is 64 MB.
"""
_DESCRIPTORS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class TransportOptions(Options):
    """All limits of a transport.

    Attributes:
        max_message_bytes: larger messages are refused.
        queue_messages: number of messages that may wait per connection and direction; beyond it,
            `send` returns False. At a server, `send` also returns False when `queue_bytes` wait for
            the peer.
        handshake_timeout_s: a connection that has not proved its key after this time is dropped.
        heartbeat_s: interval of signs of life on an idle connection.
        silent_after_s: a connection without a sign of life for this long is closed.
        gives_up_after_s: how long a peer dials what breaks off each handshake, as a busy server may
            (zmq).
    """

    max_message_bytes: Positive = 64 << 20
    queue_messages: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    handshake_timeout_s: _UpToADay = 5.0
    heartbeat_s: _UpToADay = 1.0
    silent_after_s: _UpToADay = 5.0
    gives_up_after_s: _UpToADay = 60.0

    @property
    def queue_bytes(self) -> int:
        """Number of bytes that may wait per connection and direction: four maximum-size
        messages.
        """
        return 4 * self.max_message_bytes

    def check_size(self, size_bytes: int) -> None:
        """Check the size of a message against the limit.

        Raises:
            OversizeError: the size is above `max_message_bytes`.
        """
        if size_bytes > self.max_message_bytes:
            raise OversizeError(
                f"a message of {size_bytes} bytes; at most {self.max_message_bytes} are allowed "
                "(transport option max_message_bytes)"
            )


@dataclass(frozen=True)
class Identity:
    """What a peer has proved: the name of its key and the roles that this key may play."""

    name: str
    roles: tuple[str, ...]


REVOKED = Identity("revoked", ())
"""Identity of a connection whose key was revoked after it was made. It may play no role."""


@dataclass(frozen=True)
class Incoming:
    """A message from a peer. `peer` identifies the connection, not the process: it changes when the
    peer reconnects.
    """

    peer: bytes
    identity: Identity
    data: bytes | memoryview


def cannot_listen(host: str, port: int, taken: bool, why: object) -> TransportError:
    """Return the error of a server that cannot listen, because its port is taken or for another
    reason.
    """
    if not taken:
        return TransportError(
            f"cannot listen on {host}:{port}: {why}; expected an address of this machine "
            "(--server.bind) and a port that this user may open (--server.port)"
        )
    return AddressInUseError(
        f"port {port} on {host} is taken: another server runs there, or choose another port "
        "(--server.port)"
    )


def key_refused(where: str) -> CredentialsError:
    """Return the error of a peer whose key the server does not know."""
    return CredentialsError(
        f"the server at {where} refuses this machine's key: on the server's machine run "
        "`tmrl-like keys invite NAME`, then here `tmrl-like keys join -`"
    )


def other_server(where: str) -> CredentialsError:
    """Return the error of a peer that has reached another server, or one with another protocol."""
    return CredentialsError(
        f"what listens at {where} is not the server that this machine's key is for: check "
        "the address, or join that server with a line from its `tmrl-like keys invite NAME`"
    )


def next_in(inbox: queue.SimpleQueue[T], timeout_s: float) -> T | None:
    """Return the next item of a queue, or None if there is none within `timeout_s`."""
    try:
        return inbox.get(timeout=timeout_s)
    except queue.Empty:
        return None


def raise_descriptor_limit() -> None:
    """Raise this process's limit of file descriptors: a server needs one per connection.

    The default soft limit is often 256 or 1,024; Windows has none.
    """
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            with contextlib.suppress(ValueError, OSError):  # macOS: above the kernel's own limit
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class ServerLink(Protocol):
    """The listening side. Use it from one thread; `wake` and `close` may come from any."""

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on; the actual port if 0 was requested."""

    def receive(self, timeout_s: float) -> Incoming | None:
        """Return the next message, or None after `timeout_s` or a call of `wake`.

        Messages of peers without a valid key never get here. If the key of a connection is revoked
        later, the connection is closed, or its messages come with the identity `REVOKED` so that
        the server can answer with the reason.
        """

    def send(self, peer: bytes, data: bytes | memoryview) -> bool:
        """Hand a message over, and return whether that was possible.

        If the peer is gone or its queue is full, return False; nothing is sent then.

        Raises:
            OversizeError: the message is above `max_message_bytes`.
        """

    def forget(self, peer: bytes) -> None:
        """Discard the state of a connection that is no longer used.

        If its peer sends a message after all, the connection is added again.
        """

    def is_valid(self, key: str) -> bool:
        """Whether the key of this name may connect."""

    def wake(self) -> None:
        """Make a waiting `receive` return. Any thread."""

    def close(self) -> None:
        """Stop listening and free the port. Calling it twice is fine."""


class PeerLink(Protocol):
    """The dialling side. Use it from one thread; `wake` may come from any."""

    @property
    def where(self) -> str:
        """The server's address, for messages."""

    @property
    def logs_itself(self) -> bool:
        """Whether it logs by itself whether it is connected, so that its user does not."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be broken or could not be made.

        A silent connection is not always recognised as lost.
        """

    def receive(self, timeout_s: float) -> bytes | memoryview | None:
        """Return the next message, or None after `timeout_s` or a call of `wake`.

        Raises:
            CredentialsError: the server refused this key, or is not the server that the key is for.
                The link cannot be used any more.
        """

    def send(self, data: bytes) -> bool:
        """Hand a message over, and return whether that was possible.

        If the queue is full because the server is away or slow, return False; nothing is sent then.

        Raises:
            OversizeError: the message is above `max_message_bytes`.
        """

    def wake(self) -> None:
        """Make a waiting `receive` return. Any thread."""

    def close(self) -> None:
        """Close the link, after a moment for pending messages to leave. Calling it twice is
        fine.
        """
