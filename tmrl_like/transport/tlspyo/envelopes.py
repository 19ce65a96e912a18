"""tlspyo's envelopes as typed msgpack, in place of its pickles, and what travels inside them.

tlspyo writes an ASCII length of 10 bytes, towards the relay the password, then the envelope:
(stamp, command, destination, object) towards the relay, (stamp, command, object) towards an endpoint.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from tmrl_like.errors import DecodingError
from tmrl_like.transport.frames import Piece

HEADER_BYTES = 10
MAX_ENVELOPE_BYTES = 256 * 1024
MAX_UNPROVED_BYTES = 1024
TO_SERVER = {"server": -1}
PEER_GROUPS = ("peers",)

T = TypeVar("T")
Cmd: TypeAlias = Literal["HELLO", "OBJ", "NTF", "ACK"]

_encoder = msgspec.msgpack.Encoder()
_to_relay = msgspec.msgpack.Decoder(tuple[int, Cmd, dict[str, int] | None, memoryview | tuple[str, ...] | None])
_to_endpoint = msgspec.msgpack.Decoder(tuple[int, Cmd, memoryview | None])


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Server to peer: prove your key over this nonce."""

    nonce: bytes


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Peer to server: this is my public key (Z85), and I hold its secret."""

    curve_public: str
    mac: bytes


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Server to peer: go ahead."""


class Denied(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Server to peer: your key is not, or no longer, one of mine."""


_from_peer = msgspec.msgpack.Decoder(Proof)
_from_server = msgspec.msgpack.Decoder(Challenge | Accepted | Denied | Piece)


def serialize(envelope: Any) -> bytes:
    """Encode an envelope, or an object inside one."""
    return _encoder.encode(envelope)


def deserialize_at_relay(data: bytes) -> tuple[int, Cmd, dict[str, int] | None, Any]:
    """Decode an envelope that an endpoint sent.

    Raises:
        DecodingError: it is none.
    """
    return _decoded(_to_relay, data)


def deserialize_at_endpoint(data: bytes) -> tuple[int, Cmd, Any]:
    """Decode an envelope that the relay sent.

    Raises:
        DecodingError: it is none.
    """
    return _decoded(_to_endpoint, data)


def proof_from(data: bytes | memoryview) -> Proof:
    """Decode the only thing that a peer may say before it is known.

    Raises:
        DecodingError: anything else.
    """
    return _decoded(_from_peer, data)


def said_by_server(data: bytes | memoryview) -> Challenge | Accepted | Denied | Piece:
    """Decode what the server said.

    Raises:
        DecodingError: nothing that a server says.
    """
    said: Challenge | Accepted | Denied | Piece = _decoded(_from_server, data)
    return said


def length_in(header: bytes, limit: int) -> int:
    """Read tlspyo's ASCII length.

    Raises:
        DecodingError: not a number, or above `limit`.
    """
    text = header.rstrip(b" ")
    if not text.isdigit() or int(text) > limit:
        raise DecodingError(f"an envelope with the length {header!r}; at most {limit} bytes are allowed")
    return int(text)


def _decoded(decoder: msgspec.msgpack.Decoder[T], data: bytes | memoryview) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DecodingError(f"not what tmrl_like says over tlspyo: {error}") from None


class Unacknowledged(dict[int, tuple[float, int]]):
    """tlspyo's table of what was not acknowledged yet, without a copy of every message.

    `messages` holds the stamps that complete a message; each is counted in `take_completed` once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.messages: set[int] = set()
        self._completed = 0

    def __setitem__(self, stamp: int, sent: tuple[float, Any]) -> None:
        super().__setitem__(stamp, (sent[0], len(sent[1])))

    def __delitem__(self, stamp: int) -> None:
        super().__delitem__(stamp)
        if stamp in self.messages:
            self.messages.remove(stamp)
            self._completed += 1

    def take_completed(self) -> int:
        """How many messages were acknowledged since the last call."""
        completed, self._completed = self._completed, 0
        return completed
