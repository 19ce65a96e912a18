"""Packets that the trainer has not stored yet: where each one is kept, and how far each has come."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tmrl_like.networking.spool import Place, Record, Spool
from tmrl_like.wire import messages as m

_BUNDLE_BYTES = 128 << 10
_BUNDLE_PACKETS = 64
_FIRST_PATIENCE_S = 5.0
_MAX_PATIENCE_S = 60.0
_HEADER_BYTES = 100  # about; what a packet counts for on the wire beside its body
_PACKET_BYTES = 400  # about; what a packet counts for in memory beside its body


@dataclass(eq=False, slots=True)
class Packet:
    """One packet, in memory or on disk or both."""

    sequence: int
    samples: int
    size_bytes: int
    header: m.SamplePacket | None = None  # None: on disk alone
    body: bytes = b""
    place: Place | None = None
    gone: bool = False  # stored, or lost: to be passed over


class Store:
    """Keeps packets within limits: in memory, and on disk as well where there is a spool.

    Beyond the limit for memory the oldest are on disk alone, and are read back when they are sent.
    """

    def __init__(self, spool: Spool | None, max_bytes: int, max_samples: int) -> None:
        """Start empty.

        Args:
            spool: where packets are written; None: nowhere.
            max_bytes: what may be in memory.
            max_samples: the same, in samples.
        """
        self.lost_samples = 0
        self._spool = spool
        self._max_bytes = max_bytes
        self._max_samples = max_samples
        self._packets = 0
        self._in_memory: deque[Packet] = deque()  # oldest first; may hold some that are gone
        self._bytes = 0
        self._samples = 0
        self._not_on_disk: deque[Packet] = deque()

    def add(self, header: m.SamplePacket, body: bytes) -> Packet:
        """Keep a new packet."""
        packet = Packet(header.sequence, header.samples, len(body) + _HEADER_BYTES, header, body)
        self._packets += 1
        self._in_memory.append(packet)
        self._bytes += len(body)
        self._samples += packet.samples
        if self._spool is not None:
            self._not_on_disk.append(packet)
            self.write()
        return packet

    def adopt(self, record: Record) -> Packet:
        """Keep a packet that an earlier process left on disk."""
        self._packets += 1
        return Packet(record.sequence, record.samples, record.place.length, place=record.place)

    def write(self) -> None:
        """Write to the disk what is not there yet, in order, as far as the disk takes it."""
        while self._spool is not None and self._spool.takes_more and self._not_on_disk:
            packet = self._not_on_disk[0]
            if not packet.gone:
                assert packet.header is not None
                packet.place = self._spool.append(m.encode(packet.header, packet.body))
                if packet.place is None:
                    return
            self._not_on_disk.popleft()

    def load(self, packet: Packet) -> tuple[m.SamplePacket, bytes | memoryview] | None:
        """A packet's header and body; None where the disk does not give them back."""
        if packet.header is not None:
            return packet.header, packet.body
        assert self._spool is not None
        assert packet.place is not None
        message = self._spool.read(packet.place)
        if message is None:
            return None
        header, body = m.decode(message)
        assert isinstance(header, m.SamplePacket)
        return header, body

    def remove(self, packet: Packet) -> None:
        """Keep it no longer."""
        packet.gone = True
        self._packets -= 1
        self._leave_memory(packet)
        if packet.place is not None and self._spool is not None:
            self._spool.forget(packet.place)
        while self._in_memory and self._in_memory[0].gone:
            self._in_memory.popleft()

    def make_room(self) -> Iterator[Packet]:
        """Leave packets to the disk until memory is within its limits; yields those that are not on it."""
        while len(self._in_memory) > 1 and (self._bytes > self._room_bytes or self._samples > self._max_samples):
            packet = self._in_memory.popleft()
            if packet.place is not None:
                self._leave_memory(packet)
            elif not packet.gone:
                yield packet

    @property
    def is_overfull(self) -> bool:
        """Whether packets must go although they are on disk."""
        return self._packets > 1 and (
            self._room_bytes < 0 or (self._spool is not None and self._spool.size_bytes > self._spool.max_bytes)
        )

    @property
    def _room_bytes(self) -> int:
        """Of memory, for bodies."""
        return self._max_bytes - self._packets * _PACKET_BYTES

    def _leave_memory(self, packet: Packet) -> None:
        if packet.header is not None:
            self._bytes -= len(packet.body)
            self._samples -= packet.samples
            packet.header, packet.body = None, b""


class Backlog:
    """The packets of one worker process, in order, until they are stored."""

    def __init__(self, session: int, store: Store) -> None:
        """Start empty.

        Args:
            session: of the process that made them.
            store: where they are kept.
        """
        self.session = session
        self.samples = 0  # of all packets that are kept
        self.on_its_way_bytes = 0
        self._store = store
        self._received = 0  # packets up to this number are in the trainer's memory
        self._sent: deque[Packet] = deque()
        self._unsent: deque[Packet] = deque()
        self._on_its_way: deque[Packet] = deque()  # sent, and not known to have arrived
        self._progress_at = 0.0  # when an acknowledgement last moved on
        self._patience_s = _FIRST_PATIENCE_S

    def __len__(self) -> int:
        return len(self._sent) + len(self._unsent)

    def add(self, packet: Packet) -> None:
        """Append the next one."""
        self._unsent.append(packet)
        self.samples += packet.samples

    @property
    def unsent(self) -> int:
        """How many are still to be sent."""
        return len(self._unsent)

    @property
    def pending(self) -> bool:
        """Whether any of them is not yet in the trainer's memory."""
        return bool(self._unsent or self._on_its_way)

    # -- sending -------------------------------------------------------------------------------------

    def send_some(self, send: Callable[[bytes], bool]) -> bool:
        """Send as many of the unsent as make a message of moderate size; False if `send` does not take it."""
        chosen = self._next_packets()
        if chosen and not send(self._message(chosen)):
            return False
        if not self._on_its_way:
            self._progress_at = time.monotonic()
        for packet, _, _ in chosen:
            self._sent.append(self._unsent.popleft())
            self._on_its_way.append(packet)
            self.on_its_way_bytes += packet.size_bytes
        return True

    def _next_packets(self) -> list[tuple[Packet, m.SamplePacket, bytes | memoryview]]:
        """The packets that come next, with header and body. Those that the disk does not give back are lost."""
        chosen: list[tuple[Packet, m.SamplePacket, bytes | memoryview]] = []
        unreadable: list[Packet] = []
        room = _BUNDLE_BYTES
        for packet in itertools.islice(self._unsent, _BUNDLE_PACKETS):
            room -= packet.size_bytes
            if chosen and room < 0:
                break
            loaded = self._store.load(packet)
            if loaded is None:
                unreadable.append(packet)
            else:
                chosen.append((packet, *loaded))
        for packet in unreadable:
            self.lose(packet)
        return chosen

    def _message(self, chosen: list[tuple[Packet, m.SamplePacket, bytes | memoryview]]) -> bytes:
        oldest = self._sent[0] if self._sent else chosen[0][0]
        previous = self._sent[-1] if self._sent else None
        for packet, header, _ in chosen:
            header.oldest = oldest.sequence
            header.gap = 0 if previous is None else packet.sequence - previous.sequence - 1
            previous = packet
        if len(chosen) == 1:
            return m.encode(*chosen[0][1:])
        return m.encode_bundle([(header, body) for _, header, body in chosen])

    def send_again(self, after: int | None = None) -> None:
        """What was sent may be lost: all that is kept and comes after number `after` goes out again, in order.

        Args:
            after: None: after the last packet that is known to have arrived.
        """
        self._received = self._received if after is None else after
        while self._sent and self._sent[-1].sequence > self._received:
            self._unsent.appendleft(self._sent.pop())
        self._on_its_way.clear()
        self.on_its_way_bytes = 0

    def mind_silence(self) -> None:
        """After a long silence the last packets, or their acknowledgement, may be lost: send them again."""
        now = time.monotonic()
        if self._on_its_way and now - self._progress_at > self._patience_s:
            self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
            self._progress_at = now
            self.send_again()

    # -- what is kept no longer ----------------------------------------------------------------------

    def acknowledge(self, stored: int, received: int) -> None:
        """Forget packets up to `stored`; those up to `received` have arrived."""
        if received > self._received:
            self._progress_at, self._patience_s = time.monotonic(), _FIRST_PATIENCE_S
        self._received = received
        while self._on_its_way and self._on_its_way[0].sequence <= received:
            self.on_its_way_bytes -= self._on_its_way.popleft().size_bytes
        while self._unsent and self._unsent[0].sequence <= received:
            self._sent.append(self._unsent.popleft())
        while self._sent and self._sent[0].sequence <= stored:
            self._remove(self._sent[0])

    def lose(self, packet: Packet) -> None:
        """Give a packet up; its samples are lost unless they have arrived."""
        if packet.sequence > self._received:
            self._store.lost_samples += packet.samples
        self._remove(packet)

    def lose_oldest(self) -> None:
        """Give the oldest packet up."""
        self.lose(self._sent[0] if self._sent else self._unsent[0])

    def _remove(self, packet: Packet) -> None:
        self._store.remove(packet)
        self.samples -= packet.samples
        for queue in (self._sent, self._unsent):
            if queue and queue[0] is packet:
                queue.popleft()
                return
        for queue in (self._sent, self._unsent):  # rare: in the middle
            if packet in queue:
                queue.remove(packet)
