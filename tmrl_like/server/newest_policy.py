"""The newest policy, and how much of it each worker has been sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tmrl_like.errors import OversizeError
from tmrl_like.server.waiting import KEPT_BYTES
from tmrl_like.transport.base import ServerLink
from tmrl_like.wire.messages import PolicyFrame

_MAX_ON_THEIR_WAY = 3


@dataclass(slots=True, eq=False)
class PolicyFrames:
    """The frames of one policy that have arrived so far."""

    version: int = 0
    num_frames: int = 1
    frames: list[bytes | memoryview] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def is_whole(self) -> bool:
        return len(self.frames) == self.num_frames


@dataclass(slots=True)
class SentPolicy:
    """How much one worker has been sent."""

    policy: PolicyFrames = field(default_factory=PolicyFrames)
    frames: int = 0  # number of its frames that were sent
    # versions that were sent whole and are not known to have arrived
    on_their_way: deque[int] = field(default_factory=deque)

    @property
    def is_halfway(self) -> bool:
        """Whether the rest of the policy is to be sent, even if there is a newer one: a policy that
        is larger than the worker's queue would never arrive otherwise.
        """
        return self.policy.is_whole and 0 < self.frames < self.policy.num_frames

    def on_received(self, version: int) -> None:
        """Note that this version has arrived whole at the worker."""
        while self.on_their_way and self.on_their_way[0] <= version:
            self.on_their_way.popleft()

    def may_begin(self) -> bool:
        """Whether another policy may be sent: on a slow connection, a worker gets fewer policies,
        and so newer ones.
        """
        # versions of another trainer restart at 1
        if self.on_their_way and self.on_their_way[-1] > self.policy.version:
            self.on_their_way.clear()
        return len(self.on_their_way) < _MAX_ON_THEIR_WAY


class NewestPolicy:
    """The frames of the newest policy that have arrived so far, and the newest that is whole: the
    upload of the other may have broken off.
    """

    def __init__(self, max_bytes: int) -> None:
        """Start without a policy."""
        self._max_bytes = max_bytes
        self._newest = self._whole = PolicyFrames()

    @property
    def is_whole(self) -> bool:
        return self._newest.is_whole

    def add(self, frame: PolicyFrame, data: bytes | memoryview) -> bool:
        """Add a frame, and return whether it is the next one; otherwise the policy's beginning was
        lost.

        Raises:
            OversizeError: the policy is larger than allowed.
        """
        if frame.index == 0:
            self._newest = PolicyFrames(frame.version, frame.frames)
        newest = self._newest
        if (frame.version, frame.index) != (newest.version, len(newest.frames)):
            return False
        if newest.size_bytes + len(data) + KEPT_BYTES > self._max_bytes:
            raise OversizeError(f"its policy is larger than {self._max_bytes} bytes")
        newest.frames.append(data)
        newest.size_bytes += len(data) + KEPT_BYTES
        if newest.is_whole:
            self._whole = newest
        return True

    def send(self, link: ServerLink, peer: bytes, sent: SentPolicy) -> bool:
        """Send a worker the frames that it lacks; return False as soon as its queue is full.

        A worker that has been sent nothing yet gets a whole policy first.
        """
        if sent.policy is not self._newest and not sent.is_halfway:
            is_first = not sent.policy.frames and self._whole.frames
            sent.policy, sent.frames = self._whole if is_first else self._newest, 0
        for frame in sent.policy.frames[sent.frames :]:
            if sent.frames == 0 and not sent.may_begin():
                break
            if not link.send(peer, frame):
                return False
            sent.frames += 1
            if sent.frames == sent.policy.num_frames:
                sent.on_their_way.append(sent.policy.version)
        return sent.policy is self._newest or self.send(link, peer, sent)
