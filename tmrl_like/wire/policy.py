"""A policy on the wire: safetensors bytes, in frames, so that samples and signs of life pass between them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages as m

FRAME_BYTES = 512 << 10
MAX_POLICY_BYTES = 1 << 30


def split_policy(pieces: Iterable[bytes | memoryview], version: int, published_at_s: float) -> Iterator[bytes]:
    """Yield the messages that carry a policy, in order; its pieces are not joined. `published_at_s` is Unix time."""
    views = [memoryview(piece).cast("B") for piece in pieces]
    total = sum(map(len, views))
    frames = max(1, -(-total // FRAME_BYTES))
    digest = hashlib.sha256()
    for index, body in enumerate(_chunks(views)):
        digest.update(body)
        whole = digest.digest() if index == frames - 1 else b""
        header = m.PolicyFrame(version, index, frames, total, published_at_s, whole)
        yield m.encode(header, body)


def _chunks(views: list[memoryview]) -> Iterator[bytes | memoryview]:
    """Cut the parts, one after the other, into chunks of FRAME_BYTES; at least one."""
    parts: list[memoryview] = []
    missing = FRAME_BYTES
    for view in views:
        while len(view) >= missing:
            parts.append(view[:missing])
            yield b"".join(parts) if len(parts) > 1 else parts[0]
            view, parts, missing = view[missing:], [], FRAME_BYTES
        parts.append(view)
        missing -= len(view)
    if missing < FRAME_BYTES or not any(views):
        yield b"".join(parts)


class PolicyAssembler:
    """Puts frames together again, in one piece of memory.

    A frame is copied and hashed when it comes, so that no call touches more than `FRAME_BYTES`.
    """

    def __init__(self, allocate: Callable[[int], memoryview], max_bytes: int = MAX_POLICY_BYTES) -> None:
        """`allocate` gives memory of so many bytes, for each policy that begins."""
        self._allocate = allocate
        self._max_bytes = max_bytes
        self._memory = memoryview(bytearray())
        self._digest = hashlib.sha256()
        self._version = -1
        self._filled = 0
        self._next = 0

    def add(self, frame: m.PolicyFrame, body: bytes | memoryview) -> memoryview | None:
        """Take a frame; returns the whole policy with the last one, valid until the next call.

        A frame that does not continue the policy begun is skipped (its policy is incomplete: a newer
        one follows).

        Raises:
            OversizeError: the policy claims to be larger than allowed.
            DecodingError: the frames do not add up to what was announced, or one is damaged.
        """
        if frame.total_bytes > self._max_bytes:
            raise OversizeError(f"a policy of {frame.total_bytes} bytes; at most {self._max_bytes} are allowed")
        if frame.index == 0:
            self._version, self._next, self._filled = frame.version, 0, 0
            self._digest = hashlib.sha256()
            self._memory = self._allocate(frame.total_bytes)
        if frame.version != self._version or frame.index != self._next:
            return None
        end = self._filled + len(body)
        if end > len(self._memory):
            self._version = -1
            raise DecodingError("a policy is longer than announced")
        self._memory[self._filled : end] = body
        self._digest.update(body)
        self._filled = end
        self._next += 1
        if self._next < frame.frames:
            return None
        self._version = -1
        if self._filled != len(self._memory):
            raise DecodingError(f"a policy of {len(self._memory)} bytes ended after {self._filled}")
        if self._digest.digest() != frame.digest:
            raise DecodingError(
                "the policy's hash differs from the trainer's: damaged, or its pieces belong to different policies"
            )
        return self._memory
