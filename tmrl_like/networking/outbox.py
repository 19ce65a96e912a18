"""A worker's samples between the control loop and the trainer's memory.

Three stations::

    writer    the packet being filled, by the environment's thread alone
    sealed    full packets, on their way to the connection's thread
    backlog   encoded packets, numbered, kept until the trainer has stored them for good (`backlog`)

The environment's thread only appends. Encoding, compression, writing to the spool, if there is one, and
sending happen in the connection's thread (`pump`). Everything is bounded: beyond the limits the oldest packet
is dropped and its samples are counted in `lost_samples`.

With a spool (`spool`) a packet is on disk before it is sent, and there is a second backlog for each process
that was killed before its packets were stored: they are sent as what they are, packets of that process.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tmrl_like.networking.backlog import Backlog, Store
from tmrl_like.networking.spool import Spool
from tmrl_like.types import EpisodeStats, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter

log = logging.getLogger("tmrl_like.worker")

_MAX_SEALED = 10_000


@dataclass(frozen=True, kw_only=True)
class OutboxOptions:
    """When packets leave and how much is kept.

    Attributes:
        min_samples: a packet never leaves with fewer samples (but for the reports of finished episodes).
        max_samples: a packet leaves when it has this many,
        max_packet_bytes: or when it is this large before compression, if it has `min_samples`.
        max_age_s: a packet leaves when its first sample is this old, if it has `min_samples`.
        max_bytes: unacknowledged bytes in memory; beyond, the oldest packets are on disk alone or, where they
            are not on disk, dropped and counted.
        max_held_samples: the same, in samples.
        spool_max_bytes: bytes in the spool, if there is one; beyond, the oldest packets are dropped and counted.
        window_bytes: bytes that may be on their way at once.
    """

    min_samples: int = 1
    max_samples: int = 100
    max_packet_bytes: int = 256 << 10
    max_age_s: float = 0.1
    max_bytes: int = 512 << 20
    max_held_samples: int = 10_000_000
    spool_max_bytes: int = 2 << 30
    window_bytes: int = 32 << 20


@dataclass(slots=True)
class _Sealed:
    sequence: int
    writer: PacketWriter
    episodes: tuple[m.Episode, ...]
    run: int


class Outbox:
    """Collects samples in one thread, delivers them from another."""

    def __init__(
        self,
        worker: str,
        with_originals: bool = False,
        options: OutboxOptions | None = None,
        spool: Spool | None = None,
        session: int = 0,
    ) -> None:
        """Take over what is in the spool.

        Args:
            worker: the worker's name.
            with_originals: samples have a seventh item (CRC debugging).
            options: when packets leave and how much is kept.
            spool: this worker's folder on disk; closed by `close`.
            session: of this process; 0: a random one.
        """
        self.options = options or OutboxOptions()
        self.worker = worker
        self.session = session or secrets.randbits(62) + 1
        self._with_originals = with_originals
        self._writer = PacketWriter(with_originals)
        self._started_at = 0.0
        self._full_at = max(self.options.max_samples, self.options.min_samples)
        self._episodes: list[m.Episode] = []
        self._run = 1
        self._sequence = 0
        self._sealed: deque[_Sealed] = deque()
        self._sealed_bytes = 0  # counted by the environment's thread: all that were sealed, …
        self._encoded_bytes = 0  # … and by the connection's thread: those of them that it took
        self._lost_sealed = 0
        self._spool = spool
        self._store = Store(spool, self.options.max_bytes, self.options.max_held_samples)
        self._own = Backlog(self.session, self._store)
        self._backlogs: dict[int, Backlog] = {}  # oldest first
        self._turns: deque[Backlog] = deque()  # the same; the next to send comes first
        self._told_aside: set[int] = set()  # sessions whose packets the trainer does not take
        self._take_over()
        self._compress = Compressor()
        self._warned = False
        self._closed = False
        self._busy = threading.Lock()  # `close` may meet a connection's thread that did not end

    def _take_over(self) -> None:
        for session, records in self._spool.predecessors.items() if self._spool else ():
            backlog = Backlog(session, self._store)
            for record in records:
                backlog.add(self._store.adopt(record))
            if records:
                self._backlogs[session] = backlog
        self._backlogs[self.session] = self._own
        self._turns.extend(self._backlogs.values())
        if self.unacknowledged_samples():
            log.info("sending %d samples that earlier processes left in the spool", self.unacknowledged_samples())
        if self._spool is not None:
            self._spool.begin(self.session)

    @property
    def takes_over(self) -> tuple[int, ...]:
        """Sessions of the processes whose packets this one sends as well."""
        return tuple(self._spool.predecessors) if self._spool else ()

    @property
    def alarm(self) -> str:
        """What the worker's user should know; empty: all is well."""
        return self._spool.alarm if self._spool else ""

    @property
    def lost_samples(self) -> int:
        """Samples that were dropped before the trainer had them."""
        return self._lost_sealed + self._store.lost_samples

    # -- the environment's thread --------------------------------------------------------------------

    def append(self, sample: tuple[object, ...], timing: StepTiming, is_reset: bool = False) -> None:
        """Store a sample; closes the packet when it is full or old enough.

        Raises:
            EncodingError: the sample holds something that cannot travel; the message names it.
        """
        writer = self._writer
        if writer.samples == 0:
            self._started_at = time.monotonic()
        writer.append(sample, timing, is_reset)
        samples = writer.samples
        if samples >= self._full_at or (
            samples >= self.options.min_samples
            and (
                writer.size_bytes >= self.options.max_packet_bytes
                or time.monotonic() - self._started_at >= self.options.max_age_s
            )
        ):
            self.seal()

    def end_episode(self, stats: EpisodeStats) -> None:
        """Report a finished episode, with what is in the packet so far."""
        self._episodes.append(
            m.Episode(
                test=stats.test,
                return_=float(stats.return_),
                steps=stats.steps,
                terminated=stats.terminated,
                truncated=stats.truncated,
                finished_at_s=stats.finished_at_s,
                policy_version=stats.policy_version,
                duration_s=stats.duration_s,
                overruns=stats.overruns,
                fault=stats.fault[:1000],
            )
        )
        if self._writer.samples >= self.options.min_samples or self._writer.samples == 0:
            self.seal()

    def start_new_run(self) -> None:
        """What follows does not continue what came before (the environment was built anew, say)."""
        self.seal()
        self._run += 1

    def seal(self) -> None:
        """Close the packet, whatever it holds."""
        if self._writer.samples == 0 and not self._episodes:
            return
        self._sequence += 1
        self._sealed.append(_Sealed(self._sequence, self._writer, tuple(self._episodes), self._run))
        self._sealed_bytes += self._writer.size_bytes
        self._drop_sealed()
        self._episodes.clear()
        self._writer = PacketWriter(self._with_originals, previous=self._writer)

    def _drop_sealed(self) -> None:
        """Nobody takes what was sealed when there is no connection any more."""
        while len(self._sealed) > 1 and (
            len(self._sealed) > _MAX_SEALED or self._sealed_bytes - self._encoded_bytes > self.options.max_bytes
        ):
            dropped = self._sealed.popleft().writer
            self._sealed_bytes -= dropped.size_bytes
            self._lost_sealed += dropped.samples

    # -- the connection's thread ---------------------------------------------------------------------

    def pump(self, send: Callable[[bytes], bool], may_send: bool) -> None:
        """Encode what was sealed; send as much as the window and the connection take."""
        with self._busy:
            if self._closed:
                return
            self._encode_sealed()
            self._store.write()
            if may_send:
                self._send(send)

    def _send(self, send: Callable[[bytes], bool]) -> None:
        """One message of each backlog in turn."""
        for backlog in self._turns:
            backlog.mind_silence()
        idle = 0
        while idle < len(self._turns) and self._on_its_way_bytes() < self.options.window_bytes:
            backlog = self._turns[0]
            if backlog.unsent and not backlog.send_some(send):
                return
            idle = 0 if backlog.unsent else idle + 1
            self._turns.rotate(-1)

    def _on_its_way_bytes(self) -> int:
        return sum(backlog.on_its_way_bytes for backlog in self._turns)

    def send_all_again(self, from_the_start: bool) -> None:
        """What was on its way may be lost.

        Args:
            from_the_start: also what another trainer may have received and not stored.
        """
        if from_the_start:
            self._turns = deque(self._backlogs.values())
        for backlog in self._turns:
            backlog.send_again(0 if from_the_start else None)

    def on_ack(self, ack: m.Ack) -> None:
        """Forget what is stored; send again what is missing."""
        with self._busy:
            backlog = None if self._closed else self._backlogs.get(ack.session)
            if backlog is None:
                return
            backlog.acknowledge(ack.stored, ack.received)
            if ack.again:
                backlog.send_again(ack.received)
            if not backlog and backlog is not self._own:
                del self._backlogs[ack.session]
                if backlog in self._turns:
                    self._turns.remove(backlog)

    def set_aside(self, session: int, reason: str) -> None:
        """The trainer does not take what an earlier process left: keep it, and send it to another trainer only."""
        backlog = self._backlogs.get(session)
        if backlog is None or backlog is self._own or backlog not in self._turns:
            return
        self._turns.remove(backlog)
        if session not in self._told_aside and self._spool is not None:
            self._told_aside.add(session)
            log.error(
                "%d samples that an earlier process of this worker left in the spool do not fit those in the trainer's "
                "memory: %s; they stay on disk, for another trainer: remove %s to give them up",
                backlog.samples,
                reason,
                self._spool.files_of(session),
            )

    def unacknowledged_samples(self) -> int:
        """Samples that are kept because the trainer has not stored them for good."""
        return sum(backlog.samples for backlog in self._backlogs.values())

    def pending(self) -> bool:
        """Whether anything is not yet in the trainer's memory."""
        return bool(self._sealed) or any(backlog.pending for backlog in self._turns)

    def close(self) -> None:
        """Leave what is sealed to the next process, where there is a spool. Twice is fine."""
        with self._busy:
            if self._spool is not None and not self._closed:
                self._encode_sealed()
                self._spool.close()
            self._closed = True

    def _encode_sealed(self) -> None:
        while (sealed := self._next_sealed()) is not None:
            self._encoded_bytes += sealed.writer.size_bytes
            self._encode(sealed)

    def _next_sealed(self) -> _Sealed | None:
        try:
            return self._sealed.popleft()
        except IndexError:  # not asked before: the environment's thread may just have dropped the last one
            return None

    def _encode(self, sealed: _Sealed) -> None:
        body = sealed.writer.encode()
        data, compressed = self._compress(body)
        header = m.SamplePacket(
            worker=self.worker,
            session=self.session,
            sequence=sealed.sequence,
            run=sealed.run,
            samples=sealed.writer.samples,
            body_bytes=len(body),
            checksum=zlib.crc32(data),
            compressed=compressed,
            lost_samples=self.lost_samples,
            episodes=sealed.episodes,
        )
        self._own.add(self._store.add(header, data))
        self._drop_above_limits()

    def _drop_above_limits(self) -> None:
        for packet in self._store.make_room():
            self._own.lose(packet)  # what others left is on disk
        while self._store.is_overfull:
            next(backlog for backlog in self._backlogs.values() if backlog).lose_oldest()
        if self._store.lost_samples and not self._warned:
            self._warned = True
            log.warning(
                "the outbox is full (%d samples unacknowledged): the oldest samples are dropped and counted",
                self.unacknowledged_samples(),
            )
