"""A worker's samples between the control loop and the trainer's memory.

Three stations::

    writer    the packet being filled, by the environment's thread alone
    sealed    full packets, on their way to the connection's thread
    unacked   encoded packets, numbered, kept until the trainer has stored them for good

The environment's thread only appends. Encoding, compression and sending happen in the connection's
thread (`pump`). Everything is bounded: when `max_bytes` are held, the oldest packet is dropped and its
samples are counted in `lost_samples`.
"""

from __future__ import annotations

import itertools
import logging
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tmrl_like.types import EpisodeStats, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter

log = logging.getLogger("tmrl_like.worker")

_BUNDLE_BYTES = 128 << 10
_BUNDLE_PACKETS = 64
_MAX_SEALED = 10_000
_FIRST_PATIENCE_S = 5.0
_MAX_PATIENCE_S = 60.0
_HEADER_BYTES = 100  # about; what a packet counts for beside its body


@dataclass(frozen=True, kw_only=True)
class OutboxOptions:
    """When packets leave and how much is kept.

    Attributes:
        min_samples: a packet never leaves with fewer samples (but for the reports of finished episodes).
        max_samples: a packet leaves when it has this many.
        max_age_s: a packet leaves when its first sample is this old, if it has `min_samples`.
        max_bytes: unacknowledged bytes kept; beyond, the oldest packets are dropped and counted.
        window_bytes: bytes that may be on their way at once.
    """

    min_samples: int = 1
    max_samples: int = 100
    max_age_s: float = 0.1
    max_bytes: int = 512 << 20
    window_bytes: int = 32 << 20


@dataclass(slots=True)
class _Sealed:
    writer: PacketWriter
    episodes: tuple[m.Episode, ...]
    run: int


@dataclass(frozen=True, slots=True)
class _Packet:
    header: m.SamplePacket
    body: bytes

    @property
    def sequence(self) -> int:
        return self.header.sequence

    @property
    def samples(self) -> int:
        return self.header.samples

    @property
    def size_bytes(self) -> int:
        return len(self.body) + _HEADER_BYTES


class Outbox:
    """Collects samples in one thread, delivers them from another."""

    def __init__(self, worker: str, with_originals: bool = False, options: OutboxOptions | None = None) -> None:
        self.options = options or OutboxOptions()
        self.worker = worker
        self.session = 0  # set once the connection knows it
        self.lost_samples = 0
        self._with_originals = with_originals
        self._writer = PacketWriter(with_originals)
        self._started_at = 0.0
        self._episodes: list[m.Episode] = []
        self._run = 1
        self._sealed: deque[_Sealed] = deque()
        self._unacked: deque[_Packet] = deque()
        self._held_bytes = 0
        self._held_samples = 0
        self._unsent = 0  # how many of the newest in `_unacked` still have to be sent
        self._on_its_way: deque[_Packet] = deque()  # sent, and not known to have arrived
        self._on_its_way_bytes = 0
        self._progress_at = 0.0  # when an acknowledgement last moved on
        self._patience_s = _FIRST_PATIENCE_S
        self.received = 0  # packets up to this number are in the trainer's memory
        self._sequence = 0
        self._compress = Compressor()

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
        if writer.samples >= max(self.options.max_samples, self.options.min_samples) or (
            writer.samples >= self.options.min_samples and time.monotonic() - self._started_at >= self.options.max_age_s
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
        self._sealed.append(_Sealed(self._writer, tuple(self._episodes), self._run))
        if len(self._sealed) > _MAX_SEALED:  # nobody takes them: there is no connection any more
            self.lost_samples += self._sealed.popleft().writer.samples
        self._episodes.clear()
        self._writer = PacketWriter(self._with_originals, previous=self._writer)

    # -- the connection's thread ---------------------------------------------------------------------

    def pump(self, send: Callable[[bytes], bool], may_send: bool) -> None:
        """Encode what was sealed; send as much as the window and the connection take."""
        while self._sealed:
            self._encode(self._sealed.popleft())
        if may_send and self._on_its_way and time.monotonic() - self._progress_at > self._patience_s:
            self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
            self._progress_at = time.monotonic()
            self.send_again(self.received)  # the last packets, or their acknowledgement, may be lost
        while may_send and self._unsent and self._on_its_way_bytes < self.options.window_bytes:
            packets = self._next_packets()
            if not send(_framed(packets)):
                return
            if not self._on_its_way:
                self._progress_at = time.monotonic()
            self._unsent -= len(packets)
            self._on_its_way.extend(packets)
            self._on_its_way_bytes += sum(packet.size_bytes for packet in packets)

    def _next_packets(self) -> list[_Packet]:
        """As many of the unsent as make a message of moderate size; at least one."""
        first = len(self._unacked) - self._unsent
        packets: list[_Packet] = []
        room = _BUNDLE_BYTES
        for packet in itertools.islice(self._unacked, first, first + _BUNDLE_PACKETS):
            room -= packet.size_bytes
            if packets and room < 0:
                break
            packet.header.oldest = self._unacked[0].sequence
            packets.append(packet)
        return packets

    def send_again(self, received: int = 0) -> None:
        """What was sent may be lost: all that is kept and comes after `received` goes out again, in order."""
        self.received = received
        self._unsent = sum(packet.sequence > received for packet in self._unacked)
        self._on_its_way.clear()
        self._on_its_way_bytes = 0

    def acknowledge(self, stored: int, received: int) -> None:
        """Forget packets up to `stored`; those up to `received` are not on their way any more."""
        if received > self.received:
            self._progress_at, self._patience_s = time.monotonic(), _FIRST_PATIENCE_S
        self.received = received
        while self._unacked and self._unacked[0].sequence <= stored:
            self._drop_oldest()
        while self._on_its_way and self._on_its_way[0].sequence <= received:
            self._on_its_way_bytes -= self._on_its_way.popleft().size_bytes

    def unacknowledged_samples(self) -> int:
        """Samples that are kept because the trainer has not stored them for good."""
        return self._held_samples

    def pending(self) -> bool:
        """Whether anything is not yet in the trainer's memory."""
        return bool(self._sealed or self._unsent or self._on_its_way)

    def _encode(self, sealed: _Sealed) -> None:
        body = sealed.writer.encode()
        data, compressed = self._compress(body)
        self._sequence += 1
        header = m.SamplePacket(
            worker=self.worker,
            session=self.session,
            sequence=self._sequence,
            run=sealed.run,
            samples=sealed.writer.samples,
            body_bytes=len(body),
            checksum=zlib.crc32(data),
            compressed=compressed,
            lost_samples=self.lost_samples,
            episodes=sealed.episodes,
        )
        packet = _Packet(header, data)
        self._unacked.append(packet)
        self._unsent += 1
        self._held_bytes += packet.size_bytes
        self._held_samples += packet.samples
        self._drop_above_limit()

    def _drop_above_limit(self) -> None:
        while self._held_bytes > self.options.max_bytes and len(self._unacked) > 1:
            if self._unacked[0].sequence > self.received:  # else it is in the trainer's memory, just not stored
                self._count_as_lost(self._unacked[0])
            self._drop_oldest()

    def _count_as_lost(self, packet: _Packet) -> None:
        if self.lost_samples == 0:
            log.warning(
                "the outbox is full (%d MB unacknowledged): the oldest samples are dropped and counted",
                self.options.max_bytes >> 20,
            )
        self.lost_samples += packet.samples

    def _drop_oldest(self) -> None:
        packet = self._unacked.popleft()
        self._held_bytes -= packet.size_bytes
        self._held_samples -= packet.samples
        self._unsent = min(self._unsent, len(self._unacked))


def _framed(packets: list[_Packet]) -> bytes:
    if len(packets) == 1:
        return m.encode(packets[0].header, packets[0].body)
    return m.encode_bundle([(packet.header, packet.body) for packet in packets])
