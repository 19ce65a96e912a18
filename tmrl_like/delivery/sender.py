"""Decides which entries of a control loop are sent, and sent again, by three numbers. It has no
thread and no clock of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.source import Gathered, Source
from tmrl_like.wire import messages as m

Send = Callable[[bytes], bool]

_MAX_PATIENCE_S = 60.0
_AGAIN_EVERY_S = 0.25  # more frequent requests are ignored; a trainer makes two a second
_BACKLOG = 20  # in a backlog, a packet may hold this many times as many samples


class Sender:
    """Delivers the entries of a source, in order; the trainer takes each one once, however often it
    is sent.

    Attributes:
        received: entries up to this one are in the trainer's memory, and no longer in flight.
        sent: … have been sent.
        in_flight_bytes: size of the packets that were sent and are not received yet.
        is_aside: whether the trainer does not take these entries, so that they wait for another
            trainer.
    """

    def __init__(self, source: Source, options: OutboxOptions, now: float) -> None:
        """Begin with the first entry that is not stored. `now` is always `time.monotonic()`."""
        self.source = source
        self.received = self.sent = source.stored
        self.in_flight_bytes = 0
        self.is_aside = False
        self._options = options
        self._in_flight: deque[tuple[int, int]] = deque()  # of packets: last entry, bytes
        self._waits_since: float | None = None  # since when entries wait for a packet
        self._is_backlog = False  # the previous packet was full
        self._hasten_to = 0  # entries up to this one are sent at once
        self._again_at = float("-inf")  # when it was last asked to send again
        self._progress_at = now  # when an acknowledgement last made progress
        self._patience_s = options.patience_s

    def send_one(self, send: Send, now: float, awaits: bool) -> bool | None:
        """Send the next packet; return whether the connection took it, None: none is due.

        If the worker awaits an answer, or the process has ended, all entries are due.
        """
        if self.is_aside:
            return None
        options = self._options
        full = max(options.max_samples, options.min_samples)
        max_samples = _BACKLOG * full if self._is_backlog else full
        found = self.source.packet_after(
            self.sent, options.min_samples, max_samples, options.max_packet_bytes
        )
        if found is None:
            self._waits_since, self._is_backlog = None, False
            return None
        if self._waits_since is None:
            self._waits_since = now
        everything = awaits or self.source.is_dead or self.sent < self._hasten_to
        if not (everything or found.is_ended or self._is_worth_it(found, now)):
            return None
        data = self.source.encode(found, awaits)
        if not send(data):
            return False
        if self.received == self.sent:
            self._progress_at = now
        self.sent = found.last
        self._waits_since, self._is_backlog = None, found.is_ended
        self._in_flight.append((found.last, len(data)))
        self.in_flight_bytes += len(data)
        return True

    def _is_worth_it(self, found: Gathered, now: float) -> bool:
        options = self._options
        samples = found.rows.samples
        if samples < options.min_samples:
            return bool(found.episodes) and not samples
        is_old = self._waits_since is not None and now - self._waits_since >= options.max_age_s
        return bool(found.episodes) or is_old or samples >= options.max_samples

    def hasten(self) -> None:
        """Make all current entries due at once."""
        self._hasten_to = self.source.newest

    def on_ack(self, ack: m.Ack, now: float) -> None:
        """Note what is received; send again what is missing."""
        if ack.received > self.received or ack.stored > self.source.stored:
            self._progress_at, self._patience_s = now, self._options.patience_s
        self.received = max(self.received, ack.received)
        self.sent = max(self.sent, self.received)
        while self._in_flight and self._in_flight[0][0] <= self.received:
            self.in_flight_bytes -= self._in_flight.popleft()[1]
        if ack.again and now - self._again_at >= _AGAIN_EVERY_S:
            self._again_at = now
            self.send_again(ack.received)

    def send_again(self, after: int) -> None:
        """Send the entries after this one again, except those that are stored."""
        self._hasten_to = max(self._hasten_to, self.sent)
        self.received = self.sent = max(after, self.source.stored)
        self._in_flight.clear()
        self.in_flight_bytes = 0
        self._is_backlog = False

    def mind_silence(self, now: float) -> None:
        """Send again after a long silence: packets in flight, or answers to them, may be lost."""
        is_settled = self.is_aside or self.sent <= self.source.stored
        if is_settled or now - self._progress_at <= self._patience_s:
            return
        self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
        self._progress_at = now
        self.send_again(self.received if self.received < self.sent else self.received - 1)

    @property
    def kept(self) -> int:
        """Number of entries that are not stored."""
        return max(0, self.source.newest - self.source.stored)

    @property
    def missing(self) -> int:
        """Number of entries that are not in the trainer's memory."""
        return max(0, self.source.newest - max(self.received, self.source.stored))

    @property
    def is_pending(self) -> bool:
        """Whether any entry is not yet in the trainer's memory and may still get there."""
        return not self.is_aside and self.missing > 0
