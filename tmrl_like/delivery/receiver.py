"""The trainer's bookkeeping of each worker process: what to take, to store and to acknowledge.

It has no thread and no clock of its own: the connection's thread calls it and passes the time.
`confirm` and `reject` are for the training thread.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from tmrl_like.base.budgets import Buckets, Lines
from tmrl_like.base.text import one_line
from tmrl_like.delivery.sample_store import SampleStore, StoredFile, StoreHead
from tmrl_like.delivery.sender import Send
from tmrl_like.errors import DecodingError, MemoryContractError
from tmrl_like.types import Block, Buffer, Delivery, EpisodeStats, Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import (
    SampleBlock,
    columns_in,
    decode_body,
    refuse_misnumbered,
    samples_up_to,
)

log = logging.getLogger("tmrl_like.delivery")

_ASK_AGAIN_S = 0.5
_PACKET_BYTES = 1000  # about; what a packet counts for in addition to its message
_MAX_PROCESSES = 4096
_MERGED_SAMPLES = 10_000
GROUP_BYTES = 16 << 20  # about how much is stored at once
_MAX_REASON = 2000
# of each worker, identified by its name, whatever its key:
_PROCESSES = m.MAX_TAKEN_OVER + 100  # burst of new ones; then one per second
_REPORTS = 1000  # burst of reports; then a tenth of it per second, and one per sample
_LINES = 20  # burst of log lines; then one per ten seconds

Process = tuple[str, int]  # worker, incarnation


@dataclass(slots=True)
class _Progress:
    """How far the entries of one worker process have come."""

    received: int = 0  # entries up to this one were taken, in order
    confirmed: int = 0  # … are in the memory
    stored: int = 0  # … survive a kill of the trainer
    trained: int = 0  # the training steps that entries up to this one allow are made
    awaits: bool = False  # the worker waits for these steps; otherwise `trained` is `confirmed`
    stretch: int = 1  # the first entry of the current stretch without a gap
    asked_at: float = -math.inf
    rejection: str = ""  # why the process is rejected; empty: it is not

    def begin_stretch(self, entry: int) -> None:
        """Start a new stretch with this entry: it does not continue what came before."""
        self.received, self.stretch = entry - 1, entry

    def take_over(self, entry: int) -> None:
        """Note that entries up to this one are stored and in the memory, or need not be."""
        if entry > self.received:
            self.begin_stretch(entry + 1)
        self.confirmed = max(self.confirmed, entry)
        self.stored = max(self.stored, entry)
        self.trained = max(self.trained, entry)

    def stream_of(self, packet: m.SamplePacket) -> str:
        """Return the name of the stream that the next packet belongs to."""
        return f"{packet.worker}/{packet.incarnation}/{packet.breaks}/{self.stretch}"


BlockCheck = Callable[[SampleBlock], None]
"""Raises MemoryContractError for samples that training could not use."""


class _Waiting(NamedTuple):
    """A packet between the wire and the store."""

    last: Receipt
    begin: int  # the first new entry
    samples: int  # number of new samples
    message: bytes | memoryview  # to be stored; empty: not admitted to the memory
    progress: _Progress  # of its process
    size_bytes: int  # of message and samples, approximately

    @property
    def is_stored_later(self) -> bool:
        return bool(self.message) and not self.progress.rejection


class Receiver:
    """Takes each entry of each worker process once, in order, and stores what the memory has.

    Attributes:
        malformed: number of packets that could not be decoded.
        samples: number of samples ever stored, including those of earlier processes of this
            training.
        run: the training that the samples belong to.
        began_with: number of samples that all ranks had stored when this process began.
        total_bytes: maximum bytes of all workers that wait to be read, and also that wait for
            memory and store, in equal shares. Packets beyond it wait at the worker.
    """

    def __init__(
        self,
        store: SampleStore | None = None,
        run: str = "",
        total_bytes: int = 1 << 30,
        check: BlockCheck | None = None,
    ) -> None:
        """Start empty; `replay` takes over what is in a store.

        Without a store, only the memory has the samples. Without a `check`, samples are not checked
        before they reach the memory.
        """
        self.run = run
        self.total_bytes = total_bytes
        self.malformed = 0
        self.samples = self.began_with = 0
        self._say = Lines(log, _LINES, 0.1)
        self._new_processes = Buckets(_PROCESSES, 1.0)
        self._reports = Buckets(_REPORTS, _REPORTS / 10)
        self._check = check
        self._store = store
        self._processes: dict[Process, _Progress] = {}  # least recently heard from first
        self._rejected = 0
        # packets that are not stored yet, in the order in which they were taken
        self._waiting: deque[_Waiting] = deque()
        # how many of them, from the first, are being stored, and how many samples that stores
        self._writing = 0, 0
        self._waiting_bytes: Counter[str] = Counter()  # by worker
        self._kept_out: dict[Process, _Progress] = {}  # there was no room for a packet of these
        # processes to which a message is due; True: with a request to send again
        self._due: dict[Process, bool] = {}
        # protects what both threads change: confirmed, rejection, due messages
        self._lock = threading.Lock()

    # -- samples of earlier processes --------------------------------------------------------------

    def replay(
        self, files: Iterable[StoredFile], known: Sequence[Receipt] = ()
    ) -> Iterator[Buffer]:
        """Yield all samples in the files of a store, in the order in which they were stored.

        Entries up to those in `known` are in the memory already and are skipped.

        Raises:
            WireVersionError: the files were written with another wire version.
        """
        known_up_to = {(worker, incarnation): entry for worker, incarnation, entry in known}
        yield from _merged(
            buffer for file in files for buffer in self._buffers_in(file, known_up_to)
        )
        self.note_stored(known)
        self._due = dict.fromkeys(self._processes, False)

    def _buffers_in(self, file: StoredFile, known: Mapping[Process, int]) -> Iterator[Buffer]:
        for packet, columns, begin in file.packets():
            process = packet.receipt[:2]
            progress = self._progress(process)
            if packet.last <= progress.received:
                continue  # the packet is in two files
            first = max(packet.first, begin)
            if first > progress.received + 1:
                progress.begin_stretch(first)
            skipped = samples_up_to(packet, max(progress.received, known.get(process, 0)))
            stream = progress.stream_of(packet)
            progress.received = packet.last
            progress.take_over(packet.last)
            try:
                if skipped < packet.samples:
                    yield Buffer(
                        stream=stream, blocks=(decode_body(packet, columns).after(skipped),)
                    )
            except DecodingError as error:
                self._note_malformed(packet.worker, error)
                progress.begin_stretch(packet.last + 1)
        self.samples = max(self.samples, file.head.samples)
        self.note_stored(file.head.progress)

    def note_stored(self, receipts: Sequence[Receipt]) -> None:
        """Note that entries up to these are stored, here or elsewhere; take only later ones."""
        for worker, incarnation, entry in receipts:
            self._progress((worker, incarnation)).take_over(entry)

    # -- packets (connection's thread) -------------------------------------------------------------

    def take(
        self,
        packet: m.SamplePacket,
        body: memoryview,
        data: bytes | memoryview,
        now: float,
        admit: Callable[[m.SamplePacket], bool],
        ahead_s: float = 0.0,
    ) -> Iterator[Delivery]:
        """Take the new entries of a packet, if they are next in order: yield at most one delivery.

        Damaged packets, and entries missing before a packet, are requested again, unless the worker
        no longer has them; what there is no room for is requested once there is. A packet that does
        not decode is counted and skipped. If `check` refuses samples, their process is rejected;
        samples of packets that `admit` refuses are dropped. The work is done during the iteration.

        Args:
            packet: the header.
            body: the body, which follows the header.
            data: the whole message, kept until it is stored.
            now: `time.monotonic()`.
            admit: whether a packet with this header may enter the memory; its `samples` are the new
                ones.
            ahead_s: see `Delivery`.
        """
        process = packet.receipt[:2]
        if process not in self._processes and not self._new_processes.take(packet.worker, 1, now):
            return  # without an acknowledgement it will be sent again
        progress = self._progress(process)
        if progress.rejection:
            self._ask_again(process, progress, now)
            return
        try:
            columns = columns_in(data, body)
        except DecodingError as error:
            self._note_malformed(packet.worker, error)
            self._ask_again(process, progress, now)
            return
        progress.awaits |= packet.awaits
        self._pass_over_lost(packet, progress)
        if packet.last <= progress.received:
            self._acknowledge(process)
        elif self._is_full_of(packet.worker):
            self._kept_out[process] = progress  # asking for it now would only fill the network
        elif packet.first > progress.received + 1:
            self._ask_again(process, progress, now)
        else:
            yield from self._take_new(packet, columns, data, progress, now, admit, ahead_s)

    def _pass_over_lost(self, packet: m.SamplePacket, progress: _Progress) -> None:
        """Stop waiting for entries that the worker no longer has."""
        missing, first_kept = progress.received + 1, min(packet.oldest, packet.first)
        if first_kept <= missing:
            return
        if progress.received:
            line = "entries %d to %d of worker %s are lost for good"
            self._say(packet.worker, logging.WARNING, line, missing, first_kept - 1, packet.worker)
        progress.begin_stretch(first_kept)

    def _ask_again(self, process: Process, progress: _Progress, now: float) -> None:
        """Ask a worker to send again, or tell it again that it is rejected, but not too often: it
        ignores requests that follow each other closely.
        """
        if now - progress.asked_at > _ASK_AGAIN_S:
            progress.asked_at = now
            self._kept_out.pop(process, None)
            with self._lock:
                self._due[process] = True

    def _acknowledge(self, process: Process) -> None:
        with self._lock:
            self._due.setdefault(process, False)

    def _take_new(
        self,
        packet: m.SamplePacket,
        columns: memoryview,
        data: bytes | memoryview,
        progress: _Progress,
        now: float,
        admit: Callable[[m.SamplePacket], bool],
        ahead_s: float,
    ) -> Iterator[Delivery]:
        """Take the new entries of a packet that begins no later than the next entry."""
        known = progress.received
        blocks: list[SampleBlock] = []
        episodes: list[EpisodeStats] = []
        samples, is_admitted = 0, False
        try:
            refuse_misnumbered(packet)
            skipped = samples_up_to(packet, known)
            samples = packet.samples - skipped
            is_admitted = admit(msgspec.structs.replace(packet, samples=samples))
            if is_admitted and samples:
                block = decode_body(packet, columns)
                if self._check is not None:
                    self._check(block)
                blocks = [block.after(skipped)]
            episodes = [report for entry, report in packet.episodes if entry > known]
        except MemoryContractError as error:
            self.reject(packet.receipt, str(error))
            return
        except DecodingError as error:
            self._note_malformed(packet.worker, error)
            is_admitted = False
        # an ordinary episode has samples, a test episode has none
        uncovered = max(0, len(episodes) - samples)
        if not self._reports.take(packet.worker, uncovered, now):
            episodes = []
        buffer = Buffer(stream=progress.stream_of(packet), blocks=blocks)
        # made before anything is noted, as memory may run out
        delivery = Delivery(buffer, tuple(episodes), packet.receipt, progress.awaits, ahead_s)
        size_bytes = len(data) + sum(block.size_bytes for block in blocks) + _PACKET_BYTES
        message = data if is_admitted else b""
        waiting = _Waiting(packet.receipt, known + 1, samples, message, progress, size_bytes)
        with self._lock:
            self._waiting.append(waiting)
        self._waiting_bytes[packet.worker] += size_bytes
        progress.received = packet.last
        if not is_admitted:
            progress.begin_stretch(packet.last + 1)
        yield delivery

    def _is_full_of(self, worker: str) -> bool:
        """Whether too much waits for memory and store, and this worker has more than its share of
        it.
        """
        waiting, most = self._waiting_bytes, self.total_bytes
        return waiting[worker] * len(waiting) > most and waiting.total() > most

    def _note_malformed(self, worker: str, error: DecodingError) -> None:
        self.malformed += 1
        if self.malformed == 1:
            log.error(
                "refused a packet of worker %s: %s; more of the kind are only counted",
                worker,
                error,
            )

    def _progress(self, process: Process) -> _Progress:
        """Return the progress of a process that was just heard from.

        Beyond 4,096 processes, the one that was heard from longest ago is forgotten, unless some of
        its entries are not stored yet.
        """
        with self._lock:
            progress = self._processes.pop(process, None) or _Progress()
            self._processes[process] = progress
            if len(self._processes) > _MAX_PROCESSES:
                oldest, ended = next(iter(self._processes.items()))
                del self._processes[oldest]
                if not ended.rejection and ended.stored < ended.received:
                    self._processes[oldest] = ended  # some of its entries are not stored yet
            return progress

    # -- the memory's answer (training thread) -----------------------------------------------------

    def confirm(self, receipts: Sequence[Receipt]) -> None:
        """Note that the memory has these entries."""
        with self._lock:
            for worker, incarnation, entry in receipts:
                progress = self._processes.get((worker, incarnation))
                if progress is not None:
                    progress.confirmed = max(progress.confirmed, entry)
                    if not progress.awaits:
                        progress.trained = progress.confirmed
                    self._due.setdefault((worker, incarnation), False)

    def note_trained(self, receipt: Receipt) -> None:
        """Note that the training steps that entries up to this one allow are made, which their
        worker awaits.
        """
        with self._lock:
            progress = self._processes.get(receipt[:2])
            if progress is not None:
                progress.trained = max(progress.trained, receipt.entry)
                self._due.setdefault(receipt[:2], False)

    def remind(self, worker: str) -> None:
        """Tell a worker in lockstep again how far training has come: a server with full queues may
        have dropped the last word, and a worker whose entries are all stored sends none again.
        """
        with self._lock:
            for process, progress in self._processes.items():
                if process[0] == worker and progress.trained:
                    progress.awaits = True
                    self._due.setdefault(process, False)

    @property
    def receipts(self) -> tuple[Receipt, ...]:
        """How far the entries of each worker process are in the memory."""
        with self._lock:
            processes = self._processes.items()
            return tuple(
                Receipt(*process, known.confirmed)
                for process, known in processes
                if known.confirmed
            )

    @property
    def unstored_samples(self) -> int:
        """Number of samples in the memory that are not stored; after a kill they are sent again."""
        with self._lock:
            return sum(
                one.samples
                for one in self._waiting
                if one.is_stored_later and one.last.entry <= one.progress.confirmed
            )

    def reject(self, receipt: Receipt, reason: str) -> None:
        """Reject a worker process whose samples do not fit the memory: take and acknowledge nothing
        more of it.

        `receipt` is that of the first packet that does not fit.
        """
        reason = one_line(reason, _MAX_REASON)
        with self._lock:
            progress = self._processes.get(receipt[:2])
            # it was rejected earlier, and may be forgotten since
            if progress is None or progress.rejection:
                return
            progress.rejection = reason
            self._rejected += 1
            self._due[receipt[:2]] = True
        line = (
            "worker %s is rejected, training goes on without its samples: they do not fit those in "
            "the memory: %s"
        )
        self._say(receipt.worker, logging.ERROR, line, receipt.worker, reason)

    def rejection_of(self, receipt: Receipt) -> str:
        """Return why this process is rejected; empty: it is not.

        An unknown process counts as rejected: no other is forgotten while packets of it wait.
        """
        with self._lock:
            progress = self._processes.get(receipt[:2])
            return "it is forgotten" if progress is None else progress.rejection

    # -- the store, and due messages (connection's thread) -----------------------------------------

    def write(self, now: float) -> None:
        """Store what the memory has, and acknowledge what is stored; what the disk does not take
        now waits. Once there is much room, ask for what there was none for.
        """
        while self._is_settled(now) and self._write_group(now):
            pass
        if self._kept_out and self._waiting_bytes.total() <= self.total_bytes // 2:
            for process, progress in tuple(self._kept_out.items()):
                self._ask_again(process, progress, now)

    def finish(self) -> None:
        """Store everything that the memory has, however long it takes; call this before closing the
        store.
        """
        if self._store is not None:
            self._store.wait()  # one that is unfinished at `math.inf` is called slow
        self.write(math.inf)
        while self._store is not None and self._store.wait():
            self.write(math.inf)

    def _is_settled(self, now: float) -> bool:
        """Whether nothing is being stored; acknowledge what has been."""
        if self._store is not None and not self._store.is_settled(now):
            return False
        self._note_stored(*self._writing)
        self._writing = 0, 0
        return True

    def _write_group(self, now: float) -> bool:
        """Begin to store the first packets; return False if there are none, or it is too early."""
        group: list[_Waiting] = []
        size_bytes = 0
        for waiting in self._waiting:
            progress = waiting.progress
            is_open = waiting.last.entry > progress.confirmed and not progress.rejection
            if is_open or size_bytes >= GROUP_BYTES:
                break
            group.append(waiting)
            size_bytes += waiting.size_bytes
        kept = [waiting for waiting in group if waiting.is_stored_later]
        held = sum(waiting.samples for waiting in kept)
        if self._store is None or not kept:
            self._note_stored(len(group), held)
            return bool(group)
        if size_bytes < GROUP_BYTES and not self._store.is_due(now):
            return False
        messages = [waiting.message for waiting in kept]
        self._store.write(self._head_of(group, kept, held), messages, now)
        self._writing = len(group), held  # not before, as memory may run out above
        return True

    def _head_of(self, group: Sequence[_Waiting], kept: Sequence[_Waiting], held: int) -> StoreHead:
        """Return the head of a file for this group, of which the packets in `kept`, with `held`
        samples, are stored.
        """
        stored = {process: progress.stored for process, progress in self._processes.items()}
        for waiting in group:
            if not waiting.progress.rejection:
                stored[waiting.last[:2]] = waiting.last.entry
        progress = (Receipt(*process, entry) for process, entry in stored.items() if entry)
        parts = tuple((len(waiting.message), waiting.begin) for waiting in kept)
        return StoreHead(self.run, self.samples + held, held, tuple(progress), parts)

    def _note_stored(self, packets: int, samples: int) -> None:
        """Note that this number of packets, from the first, is stored or need not be, and that
        `samples` of their samples are.
        """
        self.samples += samples
        for _ in range(packets):
            with self._lock:
                waiting = self._waiting.popleft()
            worker, incarnation, entry = waiting.last
            self._waiting_bytes[worker] -= waiting.size_bytes
            if not self._waiting_bytes[worker]:
                del self._waiting_bytes[worker]
            if not waiting.progress.rejection:
                waiting.progress.stored = max(waiting.progress.stored, entry)
                self._acknowledge((worker, incarnation))

    def answer(self, send: Send) -> None:
        """Send the messages that are due to the workers; what `send` does not take stays due."""
        with self._lock:
            due, self._due = self._due, {}
        for process, again in due.items():
            progress = self._processes.get(process)
            if progress is None:  # forgotten since
                continue
            message: m.Answer
            if progress.rejection:
                message = m.Dismissal(*process, progress.rejection)
            else:
                received = progress.received if again else progress.confirmed
                trained = progress.trained if progress.awaits else 0
                message = m.Ack(*process, progress.stored, received, again, trained)
            if not send(m.encode(message)):
                with self._lock:
                    self._due[process] = again or self._due.get(process, False)

    @property
    def pending(self) -> bool:
        """Whether any messages are due to the workers."""
        return bool(self._due)

    def metrics(self) -> dict[str, float]:
        """Return the refusals since the start, and whether the store cannot be written now."""
        return {
            "refused_packets_total": self.malformed,
            "rejected_workers_total": self._rejected,
            "log_fails": int(self._store is not None and bool(self._store.alarm)),
        }


def _merged(buffers: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join consecutive buffers of one stream, up to a moderate size."""
    for stream, following in groupby(filter(len, buffers), attrgetter("stream")):
        blocks: list[Block] = []
        samples = 0
        for buffer in following:
            blocks += buffer.blocks
            samples += len(buffer)
            if samples >= _MERGED_SAMPLES:
                yield Buffer(stream=stream, blocks=blocks)
                blocks, samples = [], 0
        if blocks:
            yield Buffer(stream=stream, blocks=blocks)
