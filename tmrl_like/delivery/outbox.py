"""A worker's samples, from the control loop to sealed packets.

The control thread appends samples to the packet that is being filled, and closes it. The connection's thread seals what
was closed (encodes and compresses it), keeps it (`sender`), and sends it. Everything is bounded: beyond the limits the
oldest packet is dropped, and its samples are counted in `lost_samples`.

With a folder, packets and the samples of the one that is being filled outlive the process (`log`, `unsealed`); what
processes left that were killed is sent as what it is, packets of those processes.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tmrl_like.delivery.folder import WorkerFolder
from tmrl_like.delivery.log import packet_pieces
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.sender import Sender
from tmrl_like.delivery.unsealed import Report, UnsealedFile
from tmrl_like.types import EpisodeStats, Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter

_MAX_CLOSED = 10_000


@dataclass(slots=True)
class _Closed:
    """A packet that is to be sealed."""

    sequence: int
    breaks: int
    writer: PacketWriter
    episodes: tuple[EpisodeStats, ...]
    unsealed: UnsealedFile | None


class Outbox:
    """Collects samples in one thread, delivers them from another."""

    def __init__(
        self,
        worker: str,
        with_originals: bool = False,
        options: OutboxOptions | None = None,
        folder: WorkerFolder | None = None,
        incarnation: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over what is in the worker's folder on disk, if it has one; `close` closes it.

        Args:
            worker: the worker's name.
            with_originals: samples have a seventh item (CRC debugging).
            options: when packets leave and how much is kept.
            folder: where samples outlive this process.
            incarnation: of this process; 0: a random one.
            clock: seconds, from any moment on.
        """
        self._clock = clock
        self.options = options or OutboxOptions()
        self.worker = worker
        self.incarnation = incarnation or secrets.randbits(62) + 1
        self._with_originals = with_originals
        self._full_at = max(self.options.max_samples, self.options.min_samples)
        self._folder = folder
        self._unsealed = None if folder is None else folder.unsealed
        self._sender = Sender(worker, self.incarnation, self.options, folder, clock())
        self._episodes: list[EpisodeStats] = []
        self._breaks = 0
        self._cuts = 0  # packets that their files did not hold whole: after a kill the next one does not continue them
        self._sequence = 0
        self._started_at = 0.0
        self._closed_packets: deque[_Closed] = deque()
        self._closed_bytes = 0  # counted by the control thread: of all that were closed, …
        self._sealed_bytes = 0  # … and by the connection's thread: of those that it took
        self._lost_closed = 0
        self._compress = Compressor()
        self._is_closed = False
        self._busy = threading.Lock()  # `close` may meet a connection's thread that did not end
        if self._unsealed is not None:
            self._unsealed.refill()
        self._writer = PacketWriter(with_originals)
        self._file: UnsealedFile | None = None  # of the packet that is being filled
        self._begin_packet()

    @property
    def takes_over(self) -> tuple[int, ...]:
        """Incarnations that are dead, whose packets this process sends as well."""
        return self._sender.predecessors

    @property
    def alarm(self) -> str:
        """What the worker's user should know; empty: all is well."""
        return self._folder.log.alarm if self._folder else ""

    @property
    def lost_samples(self) -> int:
        """Samples that were dropped before the trainer had them."""
        return self._lost_closed + self._sender.lost_samples

    # -- the control thread --------------------------------------------------------------------------

    def append(self, sample: tuple[object, ...], timing: StepTiming, is_reset: bool = False) -> None:
        """Store a sample; closes the packet when it is full or old enough.

        With a folder the sample survives a kill of the process from here on.

        Raises:
            EncodingError: the sample holds something that cannot travel; the message names it.
        """
        writer = self._writer
        if writer.samples == 0:
            self._started_at = self._clock()
        writer.append(sample, timing, is_reset)
        samples = writer.samples
        if samples >= self._full_at or (
            samples >= self.options.min_samples
            and (
                writer.size_bytes >= self.options.max_packet_bytes
                or self._clock() - self._started_at >= self.options.max_age_s
            )
        ):
            self._seal_unless_it_waits()

    def end_episode(self, stats: EpisodeStats) -> None:
        """Report a finished episode, with what is in the packet so far."""
        self._episodes.append(stats)
        if self._file is not None:
            self._file.add(Report(stats))
        if len(self._episodes) >= m.MAX_EPISODES:
            self.seal()
        elif self._writer.samples >= self.options.min_samples or self._writer.samples == 0:
            self._seal_unless_it_waits()

    def _seal_unless_it_waits(self) -> None:
        """Close the packet; fill it further where the next one's samples would not survive a kill.

        That is while the connection's thread stands still: the packet would not leave anyway.
        """
        file = self._file
        if file is None or not (file.has_room and self._unsealed and self._unsealed.are_all_in_use):
            self.seal()

    def add_break(self) -> None:
        """What follows does not continue what came before (the environment was built again, say)."""
        self.seal()
        self._breaks += 1
        if self._file is not None:
            self._file.begin(self.incarnation, self._sequence + 1, self._breaks + self._cuts)

    def seal(self) -> None:
        """Close the packet, whatever it holds; the connection's thread seals it."""
        if self._writer.samples == 0 and not self._episodes:
            return
        self._sequence += 1
        self._cuts += self._file is not None and self._file.needed_bytes > 0
        closed = _Closed(self._sequence, self._breaks, self._writer, tuple(self._episodes), self._file)
        self._closed_packets.append(closed)
        self._closed_bytes += closed.writer.size_bytes
        self._drop_closed()
        self._episodes.clear()
        self._begin_packet()

    def _begin_packet(self) -> None:
        file = self._file = None if self._unsealed is None else self._unsealed.take()
        if file is not None:
            file.begin(self.incarnation, self._sequence + 1, self._breaks + self._cuts)
        self._writer = PacketWriter(self._with_originals, self._writer, None if file is None else file.add)

    def _drop_closed(self) -> None:
        """Nobody takes what was closed when there is no connection any more."""
        while len(self._closed_packets) > 1 and (
            len(self._closed_packets) > _MAX_CLOSED or self._closed_bytes - self._sealed_bytes > self.options.max_bytes
        ):
            dropped = self._next_closed()
            if dropped is not None:
                self._closed_bytes -= dropped.writer.size_bytes
                self._lost_closed += dropped.writer.samples

    # -- the connection's thread ---------------------------------------------------------------------

    def pump(self, send: Callable[[bytes], bool], may_send: bool) -> None:
        """Seal what was closed; send as much as the window and the connection take."""
        with self._busy:
            if self._is_closed:
                return
            now = self._clock()
            self._seal_closed(now)
            if may_send:
                self._sender.lost_before = self._lost_closed
                self._sender.send(send, now)

    def on_ack(self, ack: m.Ack) -> None:
        """Forget what is stored; send again what is missing."""
        with self._busy:
            if not self._is_closed:
                self._sender.on_ack(ack, self._clock())

    def retransmit(self, from_the_start: bool) -> None:
        """See `Sender.retransmit`."""
        self._sender.retransmit(from_the_start)

    def set_aside(self, incarnation: int, reason: str) -> None:
        """See `Sender.set_aside`."""
        self._sender.set_aside(incarnation, reason)

    def unacknowledged_samples(self) -> int:
        """Samples that are kept because the trainer has not stored them."""
        return self._sender.samples

    def pending(self) -> bool:
        """Whether anything is not yet in the trainer's memory."""
        return bool(self._closed_packets) or self._sender.pending

    def close(self) -> None:
        """Leave what is closed to the next process, where there is a folder. Twice is fine."""
        with self._busy:
            if self._folder is not None and not self._is_closed:
                self._seal_closed(self._clock())
                self._folder.close()
            self._is_closed = True

    def _seal_closed(self, now: float) -> None:
        while (closed := self._next_closed()) is not None:
            self._sealed_bytes += closed.writer.size_bytes
            name = Receipt(self.worker, self.incarnation, closed.sequence)
            record = packet_pieces(name, closed.breaks, closed.writer, closed.episodes, self._compress)
            self._sender.add(closed.sequence, closed.writer.samples, record, now)
            if closed.unsealed is not None and self._unsealed is not None:
                self._unsealed.give_back(closed.unsealed)
        if self._unsealed is not None:
            self._unsealed.refill()
        self._sender.write(now)

    def _next_closed(self) -> _Closed | None:
        try:
            return self._closed_packets.popleft()
        except IndexError:  # not asked before: the other thread may just have taken the last one
            return None
