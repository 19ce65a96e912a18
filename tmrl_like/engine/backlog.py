"""Packets that a trainer has read from an engine's stream and not stored yet: they determine how
much more may be read, and what may be purged.

There is no thread, clock or connection here: the time is an argument (`time.monotonic()`).
"""

from __future__ import annotations

import logging
import math

import msgspec

from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.engine")

_WINDOW_BYTES = 48 << 20  # read and not stored; less than the trainer's limit for one worker
_AWAITED_S = 10.0  # a packet counts in the window this long: the trainer may never take it
_OVERTAKEN_S = 20.0  # a packet read this long before one that is stored was not taken
_FEW = 256  # if fewer messages are left, those that the trainer misses are not among them


class _Message(msgspec.Struct):
    """A packet that was read."""

    packet: m.SamplePacket
    sequence: int  # number in the stream
    size_bytes: int
    read_at: float


class Backlog:
    """The packets of the current pass over the stream; `begin` starts a new pass."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start a new pass from the stream's first message: sequence numbers of the previous one
        may belong to other messages by now.
        """
        # entries of each worker process that the trainer has stored
        self._stored: dict[tuple[str, int], int] = {}
        self._messages: list[_Message] = []
        self._bytes = self._newest = self._purged = self._left = 0
        self._stored_read_at = -math.inf  # when the newest stored packet was read

    def add(self, packet: m.SamplePacket, sequence: int, size_bytes: int, now: float) -> None:
        """Add a packet that was read and passed on."""
        self._messages.append(_Message(packet, sequence, size_bytes, now))
        self._bytes += size_bytes

    def note(self, sequence: int, left: int) -> None:
        """Note that a message of any kind was read, and that `left` messages follow."""
        self._newest, self._left = sequence, left

    def has_room(self, now: float) -> bool:
        """Whether more may be read: the trainer would drop what it cannot take in time."""
        if self._bytes >= _WINDOW_BYTES:
            self._settle(now)
        return self._bytes < _WINDOW_BYTES

    def _settle(self, now: float) -> None:
        """Remove the packets that are stored."""
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
        """Process the trainer's acknowledgement, and return the one to pass on to the worker.

        While many messages are left in the stream, the worker is not asked to send again: what is
        missing may be among them.
        """
        process = (ack.worker, ack.incarnation)
        self._stored[process] = max(self._stored.get(process, 0), ack.stored)
        return msgspec.structs.replace(ack, again=ack.again and self._left < _FEW)

    def on_dismissal(self, dismissal: m.Dismissal) -> None:
        """Count everything of a dismissed process as stored."""
        self._stored[dismissal.worker, dismissal.incarnation] = 2**63

    def purge(self, now: float) -> int | None:
        """Return the sequence number below which all messages may be purged; None: no change.

        A packet that was read long before one that is stored, and is not stored itself, was not
        taken: it is given up.
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

    def purge_again(self) -> None:
        """Note that a purge has failed: the next call of `purge` returns its number again."""
        self._purged = 0
