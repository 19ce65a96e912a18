"""Packets that a trainer has read from an engine's stream and not stored yet: they determine how
much more may be read, and what may be purged.

There is no thread, clock or connection here: the time is an argument (`time.monotonic()`).
"""

from __future__ import annotations

import logging
import math
from itertools import groupby
from operator import attrgetter

import msgspec

from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.engine")

# read and not stored; with one request (16 MiB), the trainer's limit for one worker
_WINDOW_BYTES = 40 << 20
_AWAITED_S = 60.0  # a packet counts in the window this long: the trainer may never take it
_OVERTAKEN_S = 20.0  # a packet read this long before one that is stored was not taken
_MAX_PROCESSES = 8192
_FEW = 256  # if fewer messages are left, those that the trainer misses are not among them

Process = tuple[str, int]  # worker, incarnation


class _Message(msgspec.Struct):
    """A packet that was read."""

    packet: m.SamplePacket
    sequence: int  # number in the stream
    size_bytes: int
    read_at: float

    @property
    def process(self) -> Process:
        return self.packet.receipt[:2]


class Backlog:
    """The packets of the current pass over the stream; `begin` starts a new pass.

    Attributes:
        is_over: whether this pass should end, as the trainer has not taken all that was read.
    """

    def __init__(self) -> None:
        self._stored: dict[Process, int] = {}  # entries that the trainer has stored
        self._taken: dict[Process, float] = {}  # entries behind these are not taken for now
        self._messages: list[_Message] = []
        self.begin()

    def begin(self) -> None:
        """Start a new pass from the stream's first message: sequence numbers of the previous one
        may belong to other messages by now.
        """
        self.is_over = False
        # of the processes of which something was left when the previous pass ended
        self._stored_before = {one.process: self._stored_of(one) for one in self._messages}
        self._messages = []
        self._bytes = self._newest = self._purged = self._left = 0
        self._stored_read_at = -math.inf  # when the newest stored packet was read

    def add(self, packet: m.SamplePacket, sequence: int, size_bytes: int, now: float) -> None:
        """Add a packet that was read and passed on."""
        message = _Message(packet, sequence, size_bytes, now)
        if not self._is_stored(message):
            self._messages.append(message)
            self._bytes += size_bytes

    def _stored_of(self, message: _Message) -> int:
        return self._stored.get(message.process, 0)

    def _is_stored(self, message: _Message) -> bool:
        return message.packet.last <= self._stored_of(message)

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
        for message in filter(self._is_stored, self._messages):
            self._stored_read_at = max(self._stored_read_at, message.read_at)
        self._messages = [message for message in self._messages if not self._is_stored(message)]
        self._bytes = sum(
            message.size_bytes
            for message in self._messages
            if now - message.read_at < _AWAITED_S
            and message.packet.first <= self._taken.get(message.process, math.inf) + 1
        )

    def on_ack(self, ack: m.Ack) -> m.Ack:
        """Process the trainer's acknowledgement, and return the one to pass on to the worker.

        While many messages are left in the stream, the worker is not asked to send again: what is
        missing may be among them.
        """
        process = (ack.worker, ack.incarnation)
        if len(self._stored) >= _MAX_PROCESSES:  # what is read again is acknowledged again
            self._stored.clear()
            self._taken.clear()
        self._stored[process] = max(self._stored.get(process, 0), ack.stored)
        self._taken[process] = ack.received if ack.again else math.inf
        return msgspec.structs.replace(ack, again=ack.again and self._left < _FEW)

    def on_dismissal(self, dismissal: m.Dismissal) -> None:
        """Count everything of a dismissed process as stored."""
        self.on_ack(m.Ack(dismissal.worker, dismissal.incarnation, 2**63, 0))

    def purge(self, now: float) -> int | None:
        """Return the sequence number below which all messages may be purged; None: no change.

        A packet that was read long before one that is stored, and is not stored itself, was not
        taken. It is read again, and given up if nothing of its process was stored since then. What
        is left when the whole stream was read, and nothing is on its way, is read again, too.
        """
        self._settle(now)
        before = self._stored_read_at - _OVERTAKEN_S
        overtaken = [message for message in self._messages if message.read_at < before]
        is_idle = not self._left and not self._bytes
        self.is_over = any(
            self._stored_before.get(message.process) != self._stored_of(message)
            for message in (self._messages if is_idle else overtaken)
        )
        if self.is_over:
            return None
        self._messages = self._messages[len(overtaken) :]
        for (worker, _), given_up in groupby(overtaken, attrgetter("process")):
            packets = [message.packet for message in given_up]
            line = "entries %d to %d of worker %s are given up: the trainer does not take them"
            log.warning(line, packets[0].first, packets[-1].last, worker)
        below = self._messages[0].sequence if self._messages else self._newest + 1
        if below <= max(self._purged, 1):
            return None
        self._purged = below
        return below

    def purge_again(self) -> None:
        """Note that a purge has failed: the next call of `purge` returns its number again."""
        self._purged = 0
