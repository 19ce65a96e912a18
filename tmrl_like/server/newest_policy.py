"""The newest policy, and how much of it each worker has been sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tmrl_like.errors import OversizeError
from tmrl_like.server.waiting import KEPT_BYTES
from tmrl_like.transport.base import ServerLink
from tmrl_like.wire.messages import PolicyFrame

_MAX_ON_THEIR_WAY = 3


@dataclass(slots=True)
class SentPolicy:
    """How much one worker has been sent."""

    policy: int = 0  # number of the policy at this server
    frames: int = 0  # number of its frames that were sent
    # versions that were sent whole and are not known to have arrived
    on_their_way: deque[int] = field(default_factory=deque)

    def on_received(self, version: int) -> None:
        """Note that this version has arrived whole at the worker."""
        while self.on_their_way and self.on_their_way[0] <= version:
            self.on_their_way.popleft()

    def may_begin(self, version: int) -> bool:
        """Whether another policy may be sent: on a slow connection, a worker gets fewer policies,
        and so newer ones.
        """
        # versions of another trainer restart at 1
        if self.on_their_way and self.on_their_way[-1] > version:
            self.on_their_way.clear()
        return len(self.on_their_way) < _MAX_ON_THEIR_WAY


class NewestPolicy:
    """The frames of the newest policy that have arrived so far."""

    def __init__(self, max_bytes: int) -> None:
        """Start without a policy."""
        self._max_bytes = max_bytes
        self._number = 0  # 1, 2, 3, …; versions may restart at 1
        self._version = 0
        self._num_frames = 1
        self._frames: list[bytes | memoryview] = []
        self._size_bytes = 0

    @property
    def is_whole(self) -> bool:
        return len(self._frames) == self._num_frames

    def add(self, frame: PolicyFrame, data: bytes | memoryview) -> bool:
        """Add a frame, and return whether it is the next one; otherwise the policy's beginning was
        lost.

        Raises:
            OversizeError: the policy is larger than allowed.
        """
        if frame.index == 0:
            self._number += 1
            self._version, self._num_frames = frame.version, frame.frames
            self._frames, self._size_bytes = [], 0
        if frame.index != len(self._frames):
            return False
        if self._size_bytes + len(data) + KEPT_BYTES > self._max_bytes:
            raise OversizeError(f"its policy is larger than {self._max_bytes} bytes")
        self._frames.append(data)
        self._size_bytes += len(data) + KEPT_BYTES
        return True

    def send(self, link: ServerLink, peer: bytes, sent: SentPolicy) -> bool:
        """Send a worker the frames that it lacks; return False as soon as its queue is full."""
        if sent.policy != self._number:
            sent.policy, sent.frames = self._number, 0
        for frame in self._frames[sent.frames :]:
            if sent.frames == 0 and not sent.may_begin(self._version):
                break
            if not link.send(peer, frame):
                return False
            sent.frames += 1
            if sent.frames == self._num_frames:
                sent.on_their_way.append(self._version)
        return True
