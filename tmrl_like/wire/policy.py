"""A policy on the wire: safetensors bytes, in frames, so that samples and signs of life pass between them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages as m

FRAME_BYTES = 512 << 10
MAX_POLICY_BYTES = 1 << 30


def split_policy(weights: bytes | memoryview, version: int, published_at_s: float) -> Iterator[bytes]:
    """Yield the messages that carry a policy, in order. `published_at_s` is Unix time."""
    view = memoryview(weights)
    frames = max(1, -(-len(view) // FRAME_BYTES))
    checksum = 0
    for index in range(frames):
        body = view[index * FRAME_BYTES : (index + 1) * FRAME_BYTES]
        checksum = zlib.crc32(body, checksum)
        frame = m.PolicyFrame(version, index, frames, len(view), published_at_s, checksum)
        yield m.encode(frame, body)


class PolicyAssembler:
    """Puts frames together again, in one piece of memory.

    A frame is copied and checked when it comes, so that no call touches more than `FRAME_BYTES`.
    """

    def __init__(self, allocate: Callable[[int], memoryview], max_bytes: int = MAX_POLICY_BYTES) -> None:
        """`allocate` gives memory of so many bytes, for each policy that begins."""
        self._allocate = allocate
        self._max_bytes = max_bytes
        self._memory = memoryview(bytearray())
        self._version = -1
        self._checksum = 0
        self._filled = 0
        self._next = 0

    def add(self, frame: m.PolicyFrame, body: memoryview) -> memoryview | None:
        """Take a frame; returns the whole policy with the last one, valid until the next call.

        A frame that does not continue the policy begun is skipped (its policy is incomplete: a newer
        one follows).

        Raises:
            OversizeError: the policy claims to be larger than allowed.
            DecodingError: the frames do not add up to what was announced, or one is damaged or of another policy.
        """
        if frame.total_bytes > self._max_bytes:
            raise OversizeError(f"a policy of {frame.total_bytes} bytes; at most {self._max_bytes} are allowed")
        if frame.index == 0:
            self._version, self._next, self._filled, self._checksum = frame.version, 0, 0, 0
            self._memory = self._allocate(frame.total_bytes)
        if frame.version != self._version or frame.index != self._next:
            return None
        self._version = -1  # nothing more of this policy is taken, unless this frame is right and not the last
        end = self._filled + len(body)
        if end > len(self._memory):
            raise DecodingError("a policy is longer than announced")
        self._memory[self._filled : end] = body
        self._checksum = zlib.crc32(body, self._checksum)
        if self._checksum != frame.checksum:
            raise DecodingError(
                "the policy's checksum differs from the trainer's: damaged, or its pieces belong to different policies"
            )
        self._filled = end
        self._next += 1
        if self._next < frame.frames:
            self._version = frame.version
            return None
        if self._filled != len(self._memory):
            raise DecodingError(f"a policy of {len(self._memory)} bytes ended after {self._filled}")
        return self._memory
