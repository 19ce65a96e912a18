"""What the trainer has of each worker process: what to take, what to keep in its log, what to acknowledge.

No thread and no clock of its own: the connection's thread calls, and says what time it is; `confirm` and `reject` are
for the training thread.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tmrl_like.base.budgets import Buckets, Lines
from tmrl_like.base.text import one_line
from tmrl_like.delivery.log import Head, PacketLog, Segment, entries_of
from tmrl_like.errors import DecodingError, MemoryContractError
from tmrl_like.types import Buffer, Delivery, EpisodeStats, Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import PacketLimits, SampleBlock, decode_bodies, decode_body
from tmrl_like.wire.records import unseal
from tmrl_like.wire.schema import Node

log = logging.getLogger("tmrl_like.delivery")

_ASK_AGAIN_S = 0.5
_PACKET_BYTES = 1000  # about; what a packet counts for beside its record
_MAX_PROCESSES = 4096
_MERGED_SAMPLES = 10_000
_WRITE_BYTES = 4 << 20
_RUN_BYTES = 256 << 10  # of packets that are decoded together: beyond, joining them costs more than it saves
_MAX_REASON = 2000
_KEPT = PacketLimits(ratio=1 << 20)  # what is on a disk may have been sent before there was such a limit

Process = tuple[str, int]  # worker, incarnation


@dataclass(slots=True)
class _Progress:
    """How far the packets of one worker process have come."""

    received: int = 0  # packets up to this one were taken, in order
    confirmed: int = 0  # … and are in the memory
    logged: int = 0  # … and in the log
    trained: int = 0  # up to here the training steps are made
    awaits: bool = False  # these steps; else `trained` is what is confirmed
    stretch: int = 1  # the first of the packets that have followed each other without a gap
    lost_samples: int = 0  # as the worker says
    asked_at: float = -1e9
    rejection: str = ""  # why nothing of it is taken any more

    def advance(self, sequence: int) -> None:
        if sequence != self.received + 1:
            self.stretch = sequence
        self.received = sequence

    def stream_of(self, packet: m.SamplePacket) -> str:
        """The name of the stream that the newest packet belongs to."""
        return f"{packet.worker}/{packet.incarnation}/{packet.breaks}/{self.stretch}"

    def may_ask(self, now: float) -> bool:
        """Whether it was not asked just now; from here on it was."""
        if now - self.asked_at <= _ASK_AGAIN_S:
            return False
        self.asked_at = now
        return True


@dataclass(frozen=True, kw_only=True)
class WorkerLimits:
    """What the trainer takes of one worker, by its name, whatever key it has. Beyond, packets wait at the worker.

    Attributes:
        turn_s: for so long packets of all workers are read before anything else is seen to.
        unread_bytes: of one worker, that wait to be read.
        total_bytes: of all workers, that wait to be read, and again that wait for memory and log; in equal shares.
        processes: new ones of one worker, at first; then one a second.
        episodes: reports of one worker, at first; then a tenth of them a second, and one per sample.
        lines: of log about one worker, at first; then one in ten seconds.
    """

    turn_s: float = 0.01
    unread_bytes: int = 64 << 20
    total_bytes: int = 1 << 30
    processes: int = m.MAX_TAKEN_OVER + 100
    episodes: int = 1000
    lines: int = 20


class SampleCheck(Protocol):
    """Refuses samples that training could not use; both raise MemoryContractError."""

    def structure(self, schema: Node) -> None:
        """Look at the structure of samples, before they are unpacked."""

    def values(self, block: SampleBlock) -> None:
        """Look at their numbers."""


class _Arrived(NamedTuple):
    """A packet that is new."""

    packet: m.SamplePacket
    body: memoryview
    record: memoryview


class _Waiting(NamedTuple):
    """Packets between the wire and the log, which follow each other."""

    last: Receipt
    samples: int
    records: list[memoryview]
    progress: _Progress  # of their process
    is_dropped: bool  # not in the memory, and not to be logged
    size_bytes: int  # of records and samples, about


class Receiver:
    """Takes each packet of each worker process once, in order, and keeps in the log what the memory has stored.

    Attributes:
        malformed: packets that could not be decoded.
        samples: ever stored, by earlier processes of this training too.
        say: logs lines about a worker, within limits.
        check: what samples must be; None: nothing is compared before they reach the memory.
    """

    def __init__(
        self,
        packet_log: PacketLog | None = None,
        run: str = "",
        keep_samples: int = 0,
        limits: WorkerLimits = WorkerLimits(),
    ) -> None:
        """Start with nothing; `replay` takes over what is in the log.

        Without a log the memory alone has the samples; with one it holds the newest `keep_samples` at least. `run`
        names the training that they belong to.
        """
        self.run = run
        self.limits = limits
        self.say = Lines(log, limits.lines, 0.1)
        self.check: SampleCheck | None = None
        self.malformed = 0
        self.samples = 0
        self._new_processes = Buckets(limits.processes, 1.0)
        self._reports = Buckets(limits.episodes, limits.episodes / 10)
        self._log = packet_log
        self._keep_samples = keep_samples
        self._processes: dict[Process, _Progress] = {}  # the one heard of longest ago comes first
        self._lost_samples = 0  # by all workers there ever were
        self._rejected = 0
        self._waiting: deque[_Waiting] = deque()
        self._written: deque[_Waiting] = deque()  # to the log, which has not settled them yet
        self._written_samples = 0
        self._waiting_bytes: Counter[str] = Counter()  # by worker
        self._acks: dict[Process, bool] = {}  # due; True: send again, please
        self._dismissals: dict[Process, None] = {}  # due, in order
        self._lock = threading.Lock()  # for what both threads change: confirmed, rejection, what is due
        if packet_log is not None:
            packet_log.make_head = lambda: Head(self.run, self.samples, self._receipts("logged"))

    def _receipts(self, state: str) -> tuple[Receipt, ...]:
        newest = ((process, getattr(progress, state)) for process, progress in self._processes.items())
        return tuple(Receipt(*process, sequence) for process, sequence in newest if sequence)

    # -- what earlier processes left -----------------------------------------------------------------

    def replay(
        self,
        segments: Sequence[Segment] | None = None,
        known: Sequence[Receipt] = (),
    ) -> Iterator[Buffer]:
        """Yield all samples in the log, or in other segments, in the order in which they were stored.

        Packets up to those in `known` are in the memory already.

        Raises:
            WireVersionError: another version wrote them.
        """
        if segments is None:
            segments = self._log.segments if self._log is not None else ()
        known_up_to = {(worker, incarnation): sequence for worker, incarnation, sequence in known}
        yield from _merged(buffer for segment in segments for buffer in self._buffers_in(segment, known_up_to))
        self.note_stored(known)
        self._acks = dict.fromkeys(self._processes, False)

    def _buffers_in(self, segment: Segment, known: Mapping[Process, int]) -> Iterator[Buffer]:
        for entry in entries_of(segment):
            message = entry.message
            if isinstance(message, Head):
                self.run = message.run
                self.samples = max(self.samples, message.samples)
                self.note_stored(message.receipts)
            elif isinstance(message, m.SamplePacket):
                process = (message.worker, message.incarnation)
                progress = self._progress(process)
                if message.sequence <= progress.logged:
                    continue  # written again after a disk that was full took some of the packets
                segment.samples += message.samples
                self.samples += message.samples
                progress.advance(message.sequence)
                progress.confirmed = progress.logged = progress.trained = message.sequence
                if message.sequence > known.get(process, 0):
                    yield self._replayed(message, entry.body, progress)

    def _replayed(self, packet: m.SamplePacket, body: memoryview, progress: _Progress) -> Buffer:
        """Decode; a packet that cannot be decoded is counted, and what follows does not continue what was before."""
        blocks: tuple[SampleBlock, ...] = ()
        try:
            blocks = (decode_body(packet, body, _KEPT),) if packet.samples else ()
        except DecodingError as error:
            self._note_malformed(packet.worker, error)
        return Buffer(stream=progress.stream_of(packet), blocks=blocks)

    def note_stored(self, receipts: Sequence[Receipt]) -> None:
        """So much of these processes is stored, here or elsewhere: take what follows."""
        for worker, incarnation, sequence in receipts:
            progress = self._progress((worker, incarnation))
            if sequence > progress.received:
                progress.received, progress.stretch = sequence, sequence + 1
                progress.confirmed = progress.logged = progress.trained = sequence

    # -- packets (connection's thread) ---------------------------------------------------------------

    def take(
        self, bundle: m.Bundle, body: memoryview, now: float, admit: Callable[[m.SamplePacket], bool]
    ) -> Iterator[Delivery]:
        """Take what is new and in order, small packets that follow each other in one piece.

        What does not decode is counted. Samples that `check` refuses make the process one that is rejected; those of
        packets that `admit` does not let into the memory are dropped. `now` is `time.monotonic()`.
        """
        process = (bundle.worker, bundle.incarnation)
        if process not in self._processes and not self._new_processes.take(bundle.worker, 1, now):
            return  # it is not acknowledged, and comes again
        progress = self._progress(process)
        self._lost_samples += max(0, bundle.lost_samples - progress.lost_samples)
        progress.lost_samples = max(progress.lost_samples, bundle.lost_samples)
        progress.awaits |= bundle.awaits
        if bundle.previous > progress.received or self._is_full_of(bundle.worker):
            if not progress.rejection and progress.may_ask(now):
                self._acks[process] = True
            return
        for run, is_admitted in _runs(self._new_packets(process, body, progress), admit):
            if not progress.rejection:
                yield from self._take_run(run, is_admitted, progress, now)
        if progress.rejection and progress.may_ask(now):
            self._dismissals[process] = None

    def _new_packets(self, process: Process, body: memoryview, progress: _Progress) -> Iterator[_Arrived]:
        newest = progress.received
        try:
            for count, (record, message) in enumerate(unseal(body)):
                packet, content = m.decode(message)
                if not isinstance(packet, m.SamplePacket) or (packet.worker, packet.incarnation) != process:
                    raise DecodingError("a bundle holds something else than its worker's packets")
                if count == m.MAX_BUNDLE_PACKETS or not (packet.samples or packet.episodes):
                    raise DecodingError("a bundle of too many packets, or a packet of neither samples nor episodes")
                if any(episode.worker != packet.worker for episode in packet.episodes):
                    raise DecodingError("a packet reports an episode of another worker")
                if packet.sequence > newest:
                    newest = packet.sequence
                    yield _Arrived(packet, content, record)
                else:
                    self._acks.setdefault(process, False)
        except DecodingError as error:
            self._note_malformed(process[0], error)

    def _take_run(self, run: list[_Arrived], is_admitted: bool, progress: _Progress, now: float) -> Iterator[Delivery]:
        """Take packets that follow each other; where one is at fault, each by itself."""
        packets = [arrived.packet for arrived in run]
        first, last = packets[0], packets[-1]
        try:
            blocks = self._blocks(run) if is_admitted else []
        except (DecodingError, MemoryContractError) as error:
            if len(run) > 1:
                for arrived in run:
                    if not progress.rejection:
                        yield from self._take_run([arrived], is_admitted, progress, now)
                return
            if isinstance(error, MemoryContractError):
                self.reject(first.receipt, str(error))
                return
            self._note_malformed(first.worker, error)
            blocks = []
        if first.sequence > progress.received + 1 and progress.received:
            line = "packets %d to %d of worker %s are lost for good"
            self.say(first.worker, logging.WARNING, line, progress.received + 1, first.sequence - 1, first.worker)
        progress.advance(first.sequence)
        progress.received = last.sequence
        buffer = Buffer(stream=progress.stream_of(first), blocks=blocks)
        samples = sum(packet.samples for packet in packets)
        is_dropped = len(buffer) < samples
        if is_dropped:
            progress.stretch = last.sequence + 1
        records = [arrived.record for arrived in run]
        size_bytes = sum(len(arrived.record) + arrived.packet.body_bytes + _PACKET_BYTES for arrived in run)
        self._waiting.append(_Waiting(last.receipt, samples, records, progress, is_dropped, size_bytes))
        self._waiting_bytes[last.worker] += size_bytes
        episodes: list[EpisodeStats] = []
        for packet in packets:
            uncovered = max(0, len(packet.episodes) - packet.samples)  # an episode has a sample, a test episode none
            if packet.episodes and self._reports.take(packet.worker, uncovered, now):
                episodes += packet.episodes
        yield Delivery(buffer, tuple(episodes), last.receipt, progress.awaits)

    def _blocks(self, run: list[_Arrived]) -> list[SampleBlock]:
        check = self.check
        bodies = ((arrived.packet, arrived.body) for arrived in run if arrived.packet.samples)
        blocks = decode_bodies(bodies, check=None if check is None else check.structure)
        if check is not None:
            for block in blocks:
                check.values(block)
        return blocks

    def _is_full_of(self, worker: str) -> bool:
        """Whether what waits for memory and log is too much, and a worker has more than its share of it."""
        waiting, total_bytes = self._waiting_bytes, self.limits.total_bytes
        return waiting[worker] * len(waiting) > total_bytes and waiting.total() > total_bytes

    def _note_malformed(self, worker: str, error: DecodingError) -> None:
        self.malformed += 1
        if self.malformed == 1:
            log.error("refused a packet of worker %s: %s; more of the kind are only counted", worker, error)

    def _progress(self, process: Process) -> _Progress:
        """The entry of a process, which has just been heard of. Of very many, those that ended first are forgotten."""
        with self._lock:
            progress = self._processes.pop(process, None) or _Progress()
            self._processes[process] = progress
            if len(self._processes) > _MAX_PROCESSES:
                oldest, ended = next(iter(self._processes.items()))
                del self._processes[oldest]
                if not ended.rejection and ended.logged < ended.received:
                    self._processes[oldest] = ended  # something of it waits
            return progress

    # -- the memory's answer (training thread) -------------------------------------------------------

    def confirm(self, receipts: Sequence[Receipt]) -> None:
        """The memory has stored these packets."""
        with self._lock:
            for worker, incarnation, sequence in receipts:
                progress = self._processes.get((worker, incarnation))
                if progress is not None:
                    progress.confirmed = max(progress.confirmed, sequence)
                    if not progress.awaits:
                        progress.trained = progress.confirmed
                    self._acks.setdefault((worker, incarnation), False)

    def note_trained(self, receipt: Receipt) -> None:
        """The training steps that packets up to this one allow are made; their worker awaits it."""
        with self._lock:
            progress = self._processes.get(receipt[:2])
            if progress is not None:
                progress.trained = max(progress.trained, receipt.sequence)
                self._acks.setdefault(receipt[:2], False)

    def remind(self, worker: str) -> None:
        """Tell a worker that awaits it again how far training is: the message before may be lost."""
        with self._lock:
            for process, progress in self._processes.items():
                if process[0] == worker and progress.trained:
                    progress.awaits = True
                    self._acks.setdefault(process, False)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """What of each worker process is in the memory."""
        with self._lock:
            return self._receipts("confirmed")

    @property
    def unstored_samples(self) -> int:
        """Samples that are in the memory and not stored: after a kill they come again."""
        with self._lock:
            waiting = {id(waiting): waiting for waiting in (*self._waiting, *self._written)}.values()
            return sum(
                waiting.samples
                for waiting in waiting
                if waiting.last.sequence <= waiting.progress.confirmed
                and not (waiting.is_dropped or waiting.progress.rejection)
            )

    def reject(self, receipt: Receipt, reason: str) -> None:
        """Take nothing more of a worker process, and acknowledge nothing more: its samples do not fit the memory.

        `receipt` is that of the first packet that does not fit.
        """
        reason = one_line(reason, _MAX_REASON)
        with self._lock:
            progress = self._processes.get(receipt[:2])
            if progress is None:  # it was rejected before, and forgotten since
                return
            progress.rejection = reason
            self._rejected += 1
            self._dismissals[receipt[:2]] = None
        line = "worker %s is rejected, training goes on without its samples: they do not fit those in the memory: %s"
        self.say(receipt.worker, logging.ERROR, line, receipt.worker, reason)

    def is_rejected(self, receipt: Receipt) -> bool:
        """Whether nothing more of this process is taken. Only such a one is forgotten while packets of it wait."""
        with self._lock:
            progress = self._processes.get(receipt[:2])
            return progress is None or bool(progress.rejection)

    # -- the log, and what is due (connection's thread) ----------------------------------------------

    def write(self, now: float) -> None:
        """Write to the log what the memory has stored. What the disk does not take now waits."""
        self._settle(now)
        while self._write_some(now):
            pass

    def _write_some(self, now: float) -> bool:
        """Write a moderate part of it, so that a disk with little room takes what it can; whether there is more."""
        if self._log is not None and not self._log.can_write(now):
            return False
        records: list[memoryview] = []
        done = samples = size_bytes = 0
        for waiting in self._waiting:
            progress = waiting.progress
            if size_bytes >= _WRITE_BYTES or (not progress.rejection and waiting.last.sequence > progress.confirmed):
                break
            done += 1
            if not (waiting.is_dropped or progress.rejection):
                records += waiting.records
                samples += waiting.samples
                size_bytes += waiting.size_bytes
        if records and self._log is not None and not self._log.append(b"".join(records), now, samples, len(records)):
            return False
        self._written.extend(self._waiting.popleft() for _ in range(done))
        self._written_samples += samples
        self._settle(now)
        return size_bytes >= _WRITE_BYTES

    def _settle(self, now: float) -> None:
        """Acknowledge what was written when the log has stored it; write it again where the log could not."""
        if not self._written:
            return
        is_stored = self._log is None or self._log.settle(now)
        if is_stored is None:
            return
        if is_stored:
            self.samples += self._written_samples
            for waiting in self._written:
                self._note_stored(waiting)
            if self._log is not None:
                self._log.keep_newest(self._keep_samples)
        else:
            self._waiting.extendleft(reversed(self._written))
        self._written.clear()
        self._written_samples = 0

    def _note_stored(self, waiting: _Waiting) -> None:
        worker, incarnation, sequence = waiting.last
        self._waiting_bytes[worker] -= waiting.size_bytes
        if not self._waiting_bytes[worker]:
            del self._waiting_bytes[worker]
        if not waiting.progress.rejection:
            waiting.progress.logged = max(waiting.progress.logged, sequence)
            with self._lock:
                self._acks.setdefault((worker, incarnation), False)

    def due(self) -> list[m.Ack | m.Dismissal]:
        """What is to be said to the workers; `not_said` takes back what could not be sent."""
        with self._lock:
            acks, self._acks = self._acks, {}
            dismissals, self._dismissals = self._dismissals, {}
        messages: list[m.Ack | m.Dismissal] = []
        for process, again in acks.items():
            progress = self._processes.get(process)
            if progress is not None and not progress.rejection:
                received = progress.received if again else progress.confirmed
                trained = progress.trained if progress.awaits else 0
                messages.append(m.Ack(*process, progress.logged, received, again, trained))
        known = [process for process in dismissals if process in self._processes]
        return messages + [m.Dismissal(*process, self._processes[process].rejection) for process in known]

    def not_said(self, message: m.Ack | m.Dismissal) -> None:
        """It is still due."""
        process = (message.worker, message.incarnation)
        with self._lock:
            if isinstance(message, m.Ack):
                self._acks[process] = self._acks.get(process, False) or message.again
            else:
                self._dismissals[process] = None

    @property
    def pending(self) -> bool:
        """Whether anything is to be said to the workers."""
        return bool(self._acks or self._dismissals)

    def metrics(self) -> dict[str, float]:
        """Losses and refusals since the start, and whether the log takes nothing now."""
        return {
            "lost_samples_total": self._lost_samples,
            "refused_packets_total": self.malformed,
            "rejected_workers_total": self._rejected,
            "log_fails": int(self._log is not None and bool(self._log.alarm)),
        }


def _runs(
    packets: Iterator[_Arrived], admit: Callable[[m.SamplePacket], bool]
) -> Iterator[tuple[list[_Arrived], bool]]:
    """Packets that follow each other as one run, up to a moderate size; those that are not admitted by themselves."""
    run: list[_Arrived] = []
    size_bytes = 0
    for arrived in packets:
        packet, is_admitted = arrived.packet, admit(arrived.packet)
        if run and not (
            is_admitted
            and packet.sequence == run[-1].packet.sequence + 1
            and packet.breaks == run[-1].packet.breaks
            and size_bytes + packet.body_bytes <= _RUN_BYTES
        ):
            yield run, True
            run, size_bytes = [], 0
        if is_admitted:
            run.append(arrived)
            size_bytes += packet.body_bytes
        else:
            yield [arrived], False
    if run:
        yield run, True


def _merged(buffers: Iterator[Buffer]) -> Iterator[Buffer]:
    """Join consecutive buffers of one stream, up to a moderate size."""
    waiting: list[Buffer] = []
    samples = 0
    for buffer in buffers:
        if not len(buffer):
            continue
        if waiting and (buffer.stream != waiting[0].stream or samples >= _MERGED_SAMPLES):
            yield _joined(waiting)
            waiting, samples = [], 0
        waiting.append(buffer)
        samples += len(buffer)
    if waiting:
        yield _joined(waiting)


def _joined(buffers: Sequence[Buffer]) -> Buffer:
    return Buffer(stream=buffers[0].stream, blocks=[block for buffer in buffers for block in buffer.blocks])
