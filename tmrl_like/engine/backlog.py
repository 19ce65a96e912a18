"""What a trainer has read of an engine's stream and not stored: what may be purged, how much more
may be read.

No thread, no clock and no connection: the time is an argument (`time.monotonic()`).
"""

from __future__ import annotations

import logging
import math

import msgspec

from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.engine")

_WINDOW_BYTES = 48 << 20  # read and not stored; less than the trainer leaves unread of one worker
_AWAITED_S = 10.0  # for so long what was read counts as on its way: no message is sure to be taken
_OVERTAKEN_S = 20.0  # what was read so long before something that is stored now was not taken
_FEW = 256  # messages that are left: what the trainer misses will not be among them


class _Message(msgspec.Struct):
    """A packet that was read."""

    packet: m.SamplePacket
    sequence: int  # in the stream
    size_bytes: int
    read_at: float


class Backlog:
    """Of one reading of the stream after the other."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """The stream is read again from its first message; until then its numbers may pass to other
        messages.
        """
        # entries of each worker process, as the trainer says
        self._stored: dict[tuple[str, int], int] = {}
        self._messages: list[_Message] = []
        self._bytes = self._newest = self._purged = self._left = 0
        self._stored_read_at = -math.inf  # when the newest of what is stored was read

    def add(self, packet: m.SamplePacket, sequence: int, size_bytes: int, now: float) -> None:
        """A packet was read, and passed on."""
        self._messages.append(_Message(packet, sequence, size_bytes, now))
        self._bytes += size_bytes

    def note(self, sequence: int, left: int) -> None:
        """A message was read, whatever it is; so many follow."""
        self._newest, self._left = sequence, left

    def has_room(self, now: float) -> bool:
        """Whether more may be read: what the trainer does not take in time it would drop."""
        if self._bytes >= _WINDOW_BYTES:
            self._settle(now)
        return self._bytes < _WINDOW_BYTES

    def _settle(self, now: float) -> None:
        """Forget what is stored."""
        unstored = []
        for message in self._messages:
            if message.packet.last > self._stored.get(message.packet.receipt[:2], 0):
                unstored.append(message)
            else:
                self._stored_read_at = max(self._stored_read_at, message.read_at)
        self._messages = unstored
        self._bytes = sum(
            message.size_bytes for message in unstored if now - message.read_at < _AWAITED_S
        )

    def on_ack(self, ack: m.Ack) -> m.Ack:
        """What the trainer says of a process; returns what goes on to its worker.

        That sends nothing again while much is left in the stream: what is missing may come.
        """
        process = (ack.worker, ack.incarnation)
        self._stored[process] = max(self._stored.get(process, 0), ack.stored)
        return msgspec.structs.replace(ack, again=ack.again and self._left < _FEW)

    def on_dismissal(self, dismissal: m.Dismissal) -> None:
        """Nothing more of a process is taken."""
        self._stored[dismissal.worker, dismissal.incarnation] = 2**63

    def purge(self, now: float) -> int | None:
        """The message of the stream below which all may go; None: no more than before.

        What was read long before something that is stored, and is not, was not taken: it is given
        up.
        """
        self._settle(now)
        while self._messages and self._messages[0].read_at < self._stored_read_at - _OVERTAKEN_S:
            packet = self._messages.pop(0).packet
            line = "entries %d to %d of worker %s are given up: the trainer does not take them"
            log.warning(line, packet.first, packet.last, packet.worker)
        below = self._messages[0].sequence if self._messages else self._newest + 1
        if below <= max(self._purged, 1):
            return None
        self._purged = below
        return below
