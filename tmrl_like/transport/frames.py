"""Large messages over a carrier that wants small ones: cut into pieces, put together again.

A piece says which message it belongs to, its place in it and the size of the whole, so the receiving
side can refuse before it has stored anything. Pieces of one connection arrive in order and messages do
not interleave; whatever deviates from that was not made here and ends the connection.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from tmrl_like.errors import DecodingError, OversizeError

PIECE_BYTES = 255 * 1024
"""Payload of a piece; with everything around it it stays below 256 KiB."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Piece(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Piece `index` of the `count` pieces of a message of `total_bytes` bytes."""

    message: _Count
    index: _Count
    count: _Count
    total_bytes: _Count
    data: memoryview


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Piece)


def cut(message: int, data: bytes | memoryview) -> Iterator[bytes]:
    """Yield the encoded pieces of a message, at least one."""
    view = memoryview(data).cast("B")
    count = pieces_of(len(view))
    for index in range(count):
        part = view[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
        yield _encoder.encode(Piece(message, index, count, len(view), part))


def pieces_of(total_bytes: int) -> int:
    """How many pieces a message of that size has."""
    return max(1, -(-total_bytes // PIECE_BYTES))


class Assembler:
    """Puts the messages of one connection together; at most one of them is unfinished.

    Memory grows with what has arrived, never with what was announced.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes
        self._first: Piece | None = None
        self._parts: list[memoryview] = []

    def add(self, encoded: bytes | memoryview) -> bytes | memoryview | None:
        """Take the next piece; returns the message that it completes, if any.

        Raises:
            OversizeError: the message is above the limit.
            DecodingError: not a piece, or not the one that follows.
        """
        try:
            piece = _decoder.decode(encoded)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DecodingError(f"not a piece of a message: {error}") from None
        self._check(piece)
        if piece.count == 1:
            return piece.data
        self._first = self._first or piece
        self._parts.append(piece.data)
        if len(self._parts) < piece.count:
            return None
        whole = b"".join(self._parts)
        self._first, self._parts = None, []
        return whole

    def _check(self, piece: Piece) -> None:
        if piece.total_bytes > self._max_message_bytes:
            raise OversizeError(
                f"a message of {piece.total_bytes} bytes; at most {self._max_message_bytes} are allowed "
                "(transport option max_message_bytes)"
            )
        first = self._first or piece
        ours = (first.message, len(self._parts), pieces_of(first.total_bytes), first.total_bytes)
        if (piece.message, piece.index, piece.count, piece.total_bytes) != ours:
            raise DecodingError(f"piece {piece.index} of message {piece.message} does not follow what came before it")
        expected = min(PIECE_BYTES, piece.total_bytes - piece.index * PIECE_BYTES)
        if len(piece.data) != expected:
            raise DecodingError(f"a piece of {len(piece.data)} bytes where {expected} belong")
