"""The wire format of a policy: several frames, between which samples and signs of life can pass.

The first frame describes the parameters, as msgpack; the others contain their raw bytes, one
parameter after the other in that order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.wire import messages as m

FRAME_BYTES = 512 << 10
MAX_MANIFEST_BYTES = 1 << 20
MAX_POLICY_BYTES = 1 << 30

DtypeName: TypeAlias = Literal["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"]
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

Manifest: TypeAlias = dict[str, tuple[DtypeName, tuple[_Size, ...]]]
"""Maps each parameter's name, in order, to its dtype, as safetensors calls it, and its shape."""

_manifest_decoder = msgspec.msgpack.Decoder(Manifest)
_NO_FRAME = -1, -1


def split_policy(
    weights: tuple[Manifest, bytes | memoryview], version: int, published_at_s: float
) -> Iterator[bytes]:
    """Yield the messages that carry a policy's parameters, in order. `published_at_s` is a Unix
    time.
    """
    manifest, data = weights
    view = memoryview(data)
    bodies = [memoryview(msgspec.msgpack.encode(manifest))]
    bodies += [view[start : start + FRAME_BYTES] for start in range(0, len(view), FRAME_BYTES)]
    checksum = 0
    for index, body in enumerate(bodies):
        checksum = zlib.crc32(body, checksum)
        yield m.encode(
            m.PolicyFrame(version, index, len(bodies), len(view), published_at_s, checksum), body
        )


class PolicyAssembler:
    """Assembles the frames of a policy in one piece of memory.

    Each frame is copied and checked when it arrives, so that no call processes more than
    `FRAME_BYTES`.
    """

    def __init__(self, allocate: Callable[[Manifest], memoryview]) -> None:
        """Start without a policy.

        `allocate` returns memory for the parameters of each new policy; `add` passes on what it
        raises.
        """
        self._allocate = allocate
        self._memory = self._left = memoryview(b"")  # `_left`: the part not filled yet
        self._next = _NO_FRAME  # version and index of the next frame
        self._checksum = 0

    def add(self, frame: m.PolicyFrame, body: memoryview) -> memoryview | None:
        """Add a frame; with the last one, return all parameters, which are valid until the next
        call.

        A frame that does not continue the current policy is skipped: its policy is incomplete, and
        a newer one will follow.

        Raises:
            OversizeError: the policy claims to be larger than allowed.
            DecodingError: the frames do not add up to what was announced, or a frame is damaged or
                of another policy.
        """
        if frame.total_bytes > MAX_POLICY_BYTES:
            raise OversizeError(
                f"a policy of {frame.total_bytes} bytes; at most {MAX_POLICY_BYTES} are allowed"
            )
        if frame.index == 0:
            self._next, self._checksum = (frame.version, 0), 0
        if (frame.version, frame.index) != self._next:
            return None
        # skip the rest of this policy, unless this frame is valid and not the last
        self._next = _NO_FRAME
        self._checksum = zlib.crc32(body, self._checksum)
        if self._checksum != frame.checksum:
            raise DecodingError(
                "the policy's checksum differs from the trainer's: damaged, or its pieces belong "
                "to different policies"
            )
        if frame.index == 0:
            self._memory = self._left = self._allocate(_manifest_in(body))
            if len(self._memory) != frame.total_bytes:
                raise DecodingError(
                    f"a policy of {frame.total_bytes} bytes for parameters of {len(self._memory)}"
                )
        elif len(body) > len(self._left):
            raise DecodingError("a policy is longer than announced")
        else:
            self._left[: len(body)] = body
            self._left = self._left[len(body) :]
        if frame.index + 1 < frame.frames:
            self._next = frame.version, frame.index + 1
            return None
        if self._left:
            raise DecodingError(
                f"a policy of {len(self._memory)} bytes ended {len(self._left)} bytes early"
            )
        return self._memory


def _manifest_in(body: memoryview) -> Manifest:
    if len(body) > MAX_MANIFEST_BYTES:
        raise OversizeError(
            f"a policy's description of {len(body)} bytes; at most {MAX_MANIFEST_BYTES} are allowed"
        )
    what = "a policy's description, give trainer and worker the same tmrl_like"
    return m.decoded(_manifest_decoder, body, what)
