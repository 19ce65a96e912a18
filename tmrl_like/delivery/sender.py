"""A worker's sealed packets until the trainer has stored them: what to send, what to send again, what to forget.

No thread and no clock of its own: the connection's thread calls, and says what time it is (`time.monotonic()`).
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tmrl_like.delivery.folder import is_private, sync_log
from tmrl_like.delivery.log import Entry, Head, PacketLog, Place, entries_of
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.reader import SampleReader, incarnations_in
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.delivery")

_BUNDLE_BYTES = 128 << 10
_BUNDLE_PACKETS = m.MAX_BUNDLE_PACKETS
_RESEND_S = 0.4  # a trainer asks again after 0.5 s; one that asks more often is not heard
_FIRST_PATIENCE_S = 5.0
_MAX_PATIENCE_S = 60.0
_PACKET_BYTES = 400  # about; what a packet counts for in memory beside its record

Send = Callable[[bytes], bool]


@dataclass(eq=False, slots=True)
class _Packet:
    """One packet: in memory, on disk, or both."""

    sequence: int
    samples: int
    size_bytes: int
    record: tuple[bytes, ...] | None  # in pieces; None: on disk alone
    place: Place | None = None  # None: in memory alone
    is_gone: bool = False  # stored or dropped


class _Backlog:
    """The packets of one worker process until they are stored, in order, each in the queue of its state."""

    def __init__(self, incarnation: int, now: float) -> None:
        self.incarnation = incarnation
        self.received: deque[_Packet] = deque()
        self.in_flight: deque[_Packet] = deque()
        self.produced: deque[_Packet] = deque()
        self.received_up_to = 0
        self.in_flight_bytes = 0  # those that were dropped on their way included
        self._dropped_in_flight: deque[_Packet] = deque()
        self.samples = 0
        self._progress_at = now  # when an acknowledgement last moved on
        self._patience_s = _FIRST_PATIENCE_S
        self.resent_at = -_RESEND_S  # because it was asked for

    def __iter__(self) -> Iterator[_Packet]:
        return itertools.chain(self.received, self.in_flight, self.produced)

    @property
    def oldest(self) -> _Packet | None:
        return next(iter(self), None)

    @property
    def newest(self) -> int:
        """Its sequence; 0: none is kept."""
        queue = self.produced or self.in_flight or self.received
        return queue[-1].sequence if queue else 0

    @property
    def newest_sent(self) -> int:
        """Its sequence; 0: none of those that are kept was sent."""
        queue = self.in_flight or self.received
        return queue[-1].sequence if queue else 0

    def add(self, packet: _Packet) -> None:
        self.produced.append(packet)
        self.samples += packet.samples

    def note_sent(self, count: int, now: float) -> None:
        if not self.in_flight_bytes:
            self._progress_at = now
        for _ in range(count):
            packet = self.produced.popleft()
            self.in_flight.append(packet)
            self.in_flight_bytes += packet.size_bytes

    def note_received(self, up_to: int, now: float) -> None:
        if up_to > self.received_up_to:
            self._progress_at, self._patience_s = now, _FIRST_PATIENCE_S
        self.received_up_to = up_to
        while self.in_flight and self.in_flight[0].sequence <= up_to:
            self.in_flight_bytes -= self.in_flight[0].size_bytes
            self.received.append(self.in_flight.popleft())
        while self._dropped_in_flight and self._dropped_in_flight[0].sequence <= up_to:
            self.in_flight_bytes -= self._dropped_in_flight.popleft().size_bytes
        while self.produced and self.produced[0].sequence <= up_to:  # they were on their way when all went out again
            self.received.append(self.produced.popleft())

    def retransmit(self, after: int) -> None:
        """All that is kept and comes after number `after` goes out again, in order."""
        self.received_up_to = after
        for queue in (self.in_flight, self.received):
            while queue and queue[-1].sequence > after:
                self.produced.appendleft(queue.pop())
        self.received += self.in_flight
        self.in_flight.clear()
        self._dropped_in_flight.clear()
        self.in_flight_bytes = 0

    def mind_silence(self, now: float) -> None:
        """After a long silence the last packets, or their acknowledgement, may be lost."""
        is_over = not self.in_flight_bytes and self.received and not self.produced
        if now - self._progress_at > self._patience_s and (self.in_flight_bytes or is_over):
            self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
            self._progress_at = now
            # what is stored is said again in answer to any packet
            self.retransmit(self.received[-1].sequence - 1 if is_over else self.received_up_to)

    def remove(self, packet: _Packet) -> None:
        packet.is_gone = True
        self.samples -= packet.samples
        queue = next(q for q in (self.received, self.in_flight, self.produced) if packet in q)
        queue.remove(packet)
        if queue is self.in_flight:
            self._dropped_in_flight.append(packet)


class Sender:
    """Delivers the packets of a worker, and those that earlier processes of it left on disk.

    Attributes:
        lost_samples: dropped because the limits were reached, or because the log did not give them back.
        lost_before: samples dropped before they were sealed; the trainer learns the sum.
        predecessors: incarnations of processes that are dead, whose packets are sent as well.
    """

    def __init__(
        self, worker: str, incarnation: int, options: OutboxOptions, log_: PacketLog, now: float, epoch_s: float = 0.0
    ) -> None:
        """Take over what is in the folder of the log, whose owner closes it; `epoch_s`: see `Bundle`."""
        self.lost_samples = 0
        self.lost_before = 0
        self._worker = worker
        self._epoch_s = epoch_s
        self._options = options
        self._log = log_
        self._is_private = is_private(log_.folder)
        self._in_memory: deque[_Packet] = deque()  # oldest first; may hold some that are gone
        self._memory_bytes = 0
        self._memory_samples = 0
        self._packets = 0
        self._not_in_log: deque[_Packet] = deque()
        self._said_aside: set[int] = set()
        self._said_full = False
        self._own = _Backlog(incarnation, now)
        self._backlogs: dict[int, _Backlog] = {}  # oldest first
        self._take_over(now)
        self.predecessors = tuple(self._backlogs)
        self._backlogs = {key: backlog for key, backlog in self._backlogs.items() if backlog.oldest is not None}
        if self.samples:
            log.info("sending %d samples that earlier processes left in %s", self.samples, log_.folder)
        self._backlogs[incarnation] = self._own
        self._turns = deque(self._backlogs.values())  # without those set aside; the next to send comes first

    # -- what earlier processes left -----------------------------------------------------------------

    def _take_over(self, now: float) -> None:
        own, waits = self._own.incarnation, False
        for segment in self._log.segments:
            try:
                entries = list(entries_of(segment))
            except m.WireVersionError as error:
                log.error("%s holds packets of %s: start that version to send them, or remove it", segment.path, error)
                continue
            names = [name for entry in entries for name in entry.receipts]
            if foreign := {name.worker for name in names} - {self._worker}:
                who = ", ".join(sorted(foreign))
                log.error("%s holds packets of worker %s: start that one to send them, or remove it", segment.path, who)
                continue
            dead = {name.incarnation for name in names} - {own}
            if len({*self._backlogs, *dead}) > m.MAX_TAKEN_OVER:
                waits = True
                continue
            for name in names:
                if name.incarnation != own:
                    self._backlogs.setdefault(name.incarnation, _Backlog(name.incarnation, now))
            for entry in entries:
                self._adopt(entry)
            if segment.kept == 0 and (entries or not segment.size_bytes):  # else it cannot be read now
                self._log.remove(segment)
        if waits:
            log.warning("%s holds packets of too many processes: the rest waits", self._log.folder)
        else:
            for incarnation in sorted(incarnations_in(self._log.folder) - {own}):
                self._take_over_unsealed(incarnation, now)
        self._log.make_head = lambda: Head(receipts=(Receipt(self._worker, own, 0),))
        self._log.begin_segment(now)

    def _adopt(self, entry: Entry) -> None:
        packet, size_bytes = entry.message, len(entry.record)
        if isinstance(packet, m.SamplePacket):
            backlog = self._own
            if packet.incarnation != backlog.incarnation:
                backlog = self._backlogs[packet.incarnation]
            if packet.sequence > backlog.newest:
                entry.place.segment.kept += 1
                self._keep(backlog, _Packet(packet.sequence, packet.samples, size_bytes, None, entry.place))

    def _take_over_unsealed(self, incarnation: int, now: float) -> None:
        """Seal what a dead process left; its files stay where the log takes nothing: packets that come twice are taken
        once.
        """
        backlog = self._backlogs.setdefault(incarnation, _Backlog(incarnation, now))
        are_kept = True

        def keep(sequence: int, samples: int, pieces: tuple[bytes, ...]) -> None:
            nonlocal are_kept
            record = b"".join(pieces)
            place = self._log.append(record, now)
            self._keep(backlog, _Packet(sequence, samples, len(record), None if place else (record,), place))
            if place is None:
                are_kept = False
                self._memory_bytes += len(record)
                self._memory_samples += samples

        name = (self._worker, incarnation)
        reader = SampleReader(self._log.folder, name, self._options, keep, backlog.newest, is_dead=True)
        try:
            reader.read(now, seal=True)
        except Exception as error:  # whatever a damaged file leads to
            log.error("cannot read what process %d left in %s: %s", incarnation, self._log.folder, error)
            are_kept = False
        reader.close(remove=are_kept and sync_log(self._log.folder))  # else a power cut might leave neither

    @property
    def newest(self) -> int:
        """The newest packet of this process that is kept; 0: none is."""
        return self._own.newest

    @property
    def oldest(self) -> int:
        """The oldest packet of this process that is kept; 0: none is."""
        return self._own.oldest.sequence if self._own.oldest else 0

    @property
    def is_all_in_log(self) -> bool:
        """Whether nothing is in memory alone."""
        return all(packet.is_gone for packet in self._not_in_log)

    def _keep(self, backlog: _Backlog, packet: _Packet) -> None:
        self._packets += 1
        backlog.add(packet)

    def add(self, sequence: int, samples: int, record: tuple[bytes, ...], now: float) -> None:
        """Keep a packet that was just sealed, its record in pieces, within the limits."""
        packet = _Packet(sequence, samples, sum(map(len, record)), record)
        self._keep(self._own, packet)
        self._in_memory.append(packet)
        self._memory_bytes += packet.size_bytes
        self._memory_samples += samples
        self._not_in_log.append(packet)
        self.write(now)
        self._make_room(now)

    def write(self, now: float) -> None:
        """Write to the log what is not there yet, in order, as far as the disk takes it."""
        while self._not_in_log and self._log.can_write(now):
            packet = self._not_in_log[0]
            if not packet.is_gone:
                assert packet.record is not None
                packet.place = self._log.append(b"".join(packet.record), now)
                if packet.place is None:
                    return
            self._not_in_log.popleft()

    def _make_room(self, now: float) -> None:
        """Leave packets to the log, or drop them, until the limits hold."""
        lost, limits = self.lost_samples, self._options
        while len(self._in_memory) > 1:
            packet = self._in_memory[0]
            max_bytes = limits.max_bytes - self._packets * _PACKET_BYTES
            if packet.place is not None:  # what goes out (again) soon is not read from there
                max_bytes = min(max_bytes, 2 * limits.window_bytes)
            if self._memory_bytes <= max_bytes and self._memory_samples <= limits.max_held_samples:
                break
            self._in_memory.popleft()
            if packet.place is not None:
                self._leave_memory(packet)
            elif not packet.is_gone:
                self._drop(self._own, packet, now)
        while self._packets > 1 and self._is_full():
            backlog = next(b for b in self._backlogs.values() if b.oldest is not None)
            assert backlog.oldest is not None
            self._drop(backlog, backlog.oldest, now)
        if self.lost_samples > lost and not self._said_full:
            self._said_full = True
            line = "the outbox is full (%d samples unacknowledged): the oldest samples are dropped and counted"
            log.warning(line, self.samples)

    def _is_full(self) -> bool:
        limits, log_bytes = self._options, self._log.size_bytes
        if self._is_private:  # the log is in memory, too
            is_full = self._packets * _PACKET_BYTES + log_bytes > limits.max_bytes
            return is_full or self.samples > limits.max_held_samples
        return self._packets * _PACKET_BYTES > limits.max_bytes or log_bytes > limits.spool_max_bytes

    def _leave_memory(self, packet: _Packet) -> None:
        if packet.record is not None:
            self._memory_bytes -= packet.size_bytes
            self._memory_samples -= packet.samples
            packet.record = None

    def _drop(self, backlog: _Backlog, packet: _Packet, now: float) -> None:
        """Give a packet up; its samples are lost unless they have arrived."""
        if packet.sequence > backlog.received_up_to:
            self.lost_samples += packet.samples
        self._forget(backlog, packet, now)

    def _forget(self, backlog: _Backlog, packet: _Packet, now: float) -> None:
        backlog.remove(packet)
        self._packets -= 1
        self._leave_memory(packet)
        if packet.place is not None:
            self._log.forget(packet.place, now)
        while self._in_memory and self._in_memory[0].is_gone:
            self._in_memory.popleft()

    def send(self, send: Send, now: float, awaits: bool = False) -> None:
        """Send what the window and the connection take, one bundle of each backlog in turn; `awaits`: see `Bundle`."""
        for backlog in self._turns:
            backlog.mind_silence(now)
        idle = 0
        while idle < len(self._turns) and self.in_flight_bytes < self._options.window_bytes:
            backlog = self._turns[0]
            if backlog.produced and not self._send_bundle(backlog, send, now, awaits):
                return
            idle = 0 if backlog.produced else idle + 1
            self._turns.rotate(-1)

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that were sent and are not known to have arrived."""
        return sum(backlog.in_flight_bytes for backlog in self._turns)

    def _send_bundle(self, backlog: _Backlog, send: Send, now: float, awaits: bool) -> bool:
        """Send as many as make a message of moderate size; False if `send` does not take it.

        Packets that the disk does not give back are dropped.
        """
        pieces: list[bytes] = []
        packets, samples, room_bytes = 0, 0, _BUNDLE_BYTES
        for packet in list(itertools.islice(backlog.produced, _BUNDLE_PACKETS)):
            room_bytes -= packet.size_bytes
            if packets and room_bytes < 0:
                break
            record = packet.record or self._read(packet)
            if record is None:
                self._drop(backlog, packet, now)
            else:
                pieces += record
                packets += 1
                samples += packet.samples
        if not packets:
            return True
        is_own = backlog is self._own
        lost = self.lost_before + self.lost_samples if is_own else 0  # the trainer adds up
        bundle = m.Bundle(
            self._worker,
            backlog.incarnation,
            samples,
            backlog.newest_sent,
            lost,
            awaits and is_own,
            self._epoch_s if is_own else 0.0,
        )
        if not send(m.encode(bundle, *pieces)):
            return False
        backlog.note_sent(packets, now)
        return True

    def _read(self, packet: _Packet) -> tuple[bytes, ...] | None:
        assert packet.place is not None
        record = self._log.read(packet.place)
        return None if record is None else (record,)

    def retransmit(self, from_the_start: bool) -> None:
        """What was in flight may be lost; `from_the_start`: so may what another trainer received and did not store."""
        if from_the_start:
            self._turns = deque(self._backlogs.values())
        for backlog in self._turns:
            backlog.retransmit(0 if from_the_start else backlog.received_up_to)

    def on_ack(self, ack: m.Ack, now: float) -> None:
        """Forget what is stored; send again what is missing."""
        backlog = self._backlogs.get(ack.incarnation)
        if backlog is None:
            return
        backlog.note_received(ack.received, now)
        while backlog.received and backlog.received[0].sequence <= ack.stored:
            self._forget(backlog, backlog.received[0], now)
        if ack.again and now - backlog.resent_at >= _RESEND_S:
            backlog.resent_at = now
            backlog.retransmit(ack.received)
        if backlog.oldest is None and backlog is not self._own:
            del self._backlogs[ack.incarnation]
            if backlog in self._turns:
                self._turns.remove(backlog)

    def set_aside(self, incarnation: int, reason: str) -> None:
        """The trainer does not take what an earlier process left: keep it, and send it to another trainer only."""
        backlog = self._backlogs.get(incarnation)
        if backlog is None or backlog is self._own or backlog not in self._turns:
            return
        self._turns.remove(backlog)
        if incarnation not in self._said_aside:
            self._said_aside.add(incarnation)
            log.error(
                "%d samples that an earlier process of this worker left on disk do not fit those in the trainer's "
                "memory: %s; they stay on disk, for another trainer: remove %s to give them up",
                backlog.samples,
                reason,
                ", ".join(sorted({str(packet.place.segment.path) for packet in backlog if packet.place})),
            )

    @property
    def samples(self) -> int:
        """Samples that are kept because the trainer has not stored them."""
        return sum(backlog.samples for backlog in self._backlogs.values())

    @property
    def pending(self) -> bool:
        """Whether anything is not yet in the trainer's memory."""
        return any(backlog.produced or backlog.in_flight for backlog in self._turns)
