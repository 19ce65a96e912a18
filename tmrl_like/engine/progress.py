"""What a trainer has taken of an engine's stream: what to pass on, what to ask for again, what may be purged.

No thread, no clock and no connection: the time is an argument (`time.monotonic()`).

The stream is read in its order, from the first message that it holds, whenever its consumer is made. A bundle is passed
on if it follows what was passed on of its process. One that lies behind a hole is not needed where it is: what filled
the hole has sent again all that followed. A message is done, and may go, when all its packets are stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tmrl_like.engine.subjects import part_of
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.engine")

_WINDOW_BYTES = 48 << 20  # passed on and not in the memory; less than the trainer leaves unread of one worker
_AWAITED_S = 10.0  # for so long what was passed on counts as on its way: no message is sure to be taken
_OVERTAKEN_S = 20.0  # what was passed on so long before something that is stored now was not taken
_REREADS = 2
_ASK_AFTER_S, _MAX_ASK_AFTER_S = 0.5, 30.0
_MAX_PROCESSES = 4096

Process = tuple[str, int]  # worker, incarnation


@dataclass(eq=False, slots=True)
class _Message:
    """A bundle in the stream that is not stored as a whole."""

    worker: str
    process: _Progress
    sequence: int  # in the stream
    previous: int  # the packet before its first one
    last: int
    passed_at: float
    is_done: bool = False


@dataclass(eq=False, slots=True)
class _Progress:
    """How far one worker process is."""

    passed: int = -1  # all packets up to this one were passed on; -1: nothing is known
    received: int = 0
    stored: int = 0
    is_dismissed: bool = False
    rereads: int = 0  # for what was passed on and not taken, since something of it was stored
    waiting: deque[_Message] = field(default_factory=deque)

    def settle(self) -> float:
        """Let go of what is stored; when the newest of it was passed on."""
        newest_at = -1e9
        while self.waiting and (self.is_dismissed or self.waiting[0].is_done or self.waiting[0].last <= self.stored):
            message = self.waiting.popleft()
            newest_at = max(newest_at, -1e9 if message.is_done else message.passed_at)
            message.is_done = True
        return newest_at


@dataclass(eq=False, slots=True)
class _Hole:
    """Packets of a process are missing, and nobody may know it."""

    ask_at: float
    read_up_to: int  # what the stream held then may fill it
    wait_s: float = _ASK_AFTER_S


class StreamProgress:
    """The stream, as far as it was read.

    Attributes:
        read: messages so far.
        left: that it holds beyond the newest one that was read.
        is_silent: nothing comes of it now.
    """

    def __init__(self, parts: Sequence[int] | None = None) -> None:
        """Read these parts of it; None: all of it."""
        self._waiting: dict[int | None, deque[_Message]] = {part: deque() for part in parts or (None,)}
        self._newest = dict.fromkeys(self._waiting, 0)
        self._purged = dict.fromkeys(self._waiting, 0)
        self.read = self.left = 0
        self.is_silent = True

    def begin(self, left: int) -> None:
        """It is read again from its first message; so many lie before it."""
        for queue in self._waiting.values():
            for message in queue:
                message.is_done = True
            queue.clear()
        self._newest = dict.fromkeys(self._waiting, 0)
        self._purged = dict.fromkeys(self._waiting, 0)
        self.left = left

    def note(self, sequence: int, part: int, left: int) -> None:
        """A message was read."""
        key = part if part in self._newest else None
        if not self._newest[key]:
            self._purged[key] = sequence - 1
        self._newest[key] = sequence
        self.read += 1
        self.left = left

    def keep(self, message: _Message, part: int) -> None:
        """It may not go yet."""
        self._waiting[part if part in self._waiting else None].append(message)

    def purges(self) -> Iterator[tuple[int | None, int]]:
        """(part or None for all, sequence): what lies before it may go."""
        for part, queue in self._waiting.items():
            while queue and queue[0].is_done:
                queue.popleft()
            below = queue[0].sequence if queue else self._newest[part] + 1
            if below > self._purged[part] + 1:
                yield part, below

    def overtaken(self, stored_at: float) -> Iterator[_Message]:
        """What holds up the others, and was passed on long before something that is stored."""
        for queue in self._waiting.values():
            if queue and not queue[0].is_done and queue[0].passed_at < stored_at - _OVERTAKEN_S:
                yield queue[0]

    def note_purged(self, part: int | None, below: int) -> None:
        """It has gone."""
        self._purged[part] = below - 1


class Progress:
    """Of the stream and all worker processes.

    Attributes:
        stream: as far as it was read.
        read_again: it holds packets which were passed on and not taken.
        on_way_bytes: of what was passed on and is not in the memory yet.
    """

    def __init__(self) -> None:
        self.stream = StreamProgress()
        self._stored_at = -1e9  # when the newest message that is stored was passed on
        self.read_again = False
        self.on_way_bytes = 0
        self._processes: dict[Process, _Progress] = {}  # the one heard of longest ago comes first
        self._holes: dict[Process, _Hole] = {}
        self._on_way: deque[tuple[float, _Progress, int, int]] = deque()  # passed on at, process, last packet, bytes

    def _progress(self, process: Process) -> _Progress:
        progress = self._processes.pop(process) if process in self._processes else _Progress()
        self._processes[process] = progress
        if len(self._processes) > _MAX_PROCESSES:
            del self._processes[next(iter(self._processes))]
        return progress

    def offer(self, bundle: m.Bundle, last: int, size_bytes: int, now: float, sequence: int = 0) -> bool:
        """Whether to pass a bundle on, whose newest packet is `last`: the stream's message `sequence`; 0: by itself."""
        process = (bundle.worker, bundle.incarnation)
        progress = self._progress(process)
        is_behind_a_hole = 0 <= progress.passed < bundle.previous
        if sequence and not (is_behind_a_hole or progress.is_dismissed or last <= progress.stored):
            message = _Message(bundle.worker, progress, sequence, bundle.previous, last, now)
            progress.waiting.append(message)
            self.stream.keep(message, part_of(bundle.worker))
        if is_behind_a_hole:
            self._note_missing(process, now)
            return False
        if last <= progress.passed and not progress.is_dismissed:
            return False
        progress.passed = max(progress.passed, last)
        self._holes.pop(process, None)
        self._on_way.append((now, progress, last, size_bytes))
        self.on_way_bytes += size_bytes
        return True

    def has_stored(self, process: Process, sequence: int) -> bool:
        """Whether the trainer has stored the packets of a process up to this one."""
        return self._progress(process).stored >= sequence

    def has_room(self, now: float) -> bool:
        """Whether more may be passed on: what the trainer does not take in time it would drop."""
        while self._on_way:
            passed_at, progress, last, size_bytes = self._on_way[0]
            if last > progress.received and not progress.is_dismissed and now - passed_at < _AWAITED_S:
                break
            self._on_way.popleft()
            self.on_way_bytes -= size_bytes
        return self.on_way_bytes < _WINDOW_BYTES

    def on_ack(self, ack: m.Ack, now: float) -> m.Ack:
        """What the trainer says of a process; returns what is to go on to the worker: it is asked later, if at all."""
        process = (ack.worker, ack.incarnation)
        progress = self._progress(process)
        if ack.stored > progress.stored:
            progress.stored, progress.rereads = ack.stored, 0
            self._stored_at = max(self._stored_at, progress.settle())
        progress.received = max(progress.received, ack.received)
        progress.passed = max(progress.passed, ack.received)
        if not ack.again:
            return ack
        progress.passed = ack.received
        if any(not w.is_done and w.previous <= ack.received < w.last for w in progress.waiting):
            self.read_again = True
        else:
            self._note_missing(process, now)
        return m.Ack(ack.worker, ack.incarnation, ack.stored, ack.received, trained=ack.trained)

    def on_dismissal(self, process: Process) -> None:
        """Nothing more of it is taken."""
        progress = self._progress(process)
        progress.is_dismissed = True
        progress.settle()
        self._holes.pop(process, None)

    def _note_missing(self, process: Process, now: float) -> None:
        if process not in self._holes:
            self._holes[process] = _Hole(now + _ASK_AFTER_S, self.stream.read + self.stream.left)

    def purges(self) -> Iterator[tuple[int | None, int]]:
        """(part or None for all, sequence): what lies before it in the stream may go.

        Packets are stored in the order in which they are taken. What was passed on long before something that is stored
        was not taken: it is read again, and where that does not help, given up. While the stream is away its numbers
        may pass to other messages.
        """
        if self.stream.is_silent:
            return iter(())
        for message in () if self.read_again else self.stream.overtaken(self._stored_at):
            process = message.process
            if process.rereads < _REREADS:
                process.rereads += 1
                process.passed = message.previous
                self.read_again = True
            else:
                message.is_done = True
                line = "packets %d to %d of worker %s are given up: the trainer does not take them"
                log.warning(line, message.previous + 1, message.last, message.worker)
        return self.stream.purges()

    def begin(self, left: int) -> None:
        """The stream is read again from its first message; so many lie before it."""
        self.stream.begin(left)
        for progress in self._processes.values():
            progress.settle()
        self.read_again = False
        for hole in self._holes.values():
            hole.read_up_to = self.stream.read + left

    def asks(self, now: float) -> list[m.Ack]:
        """What to have sent again: holes that nothing in the stream has filled; of each process ever less often."""
        asks = []
        for process, hole in self._holes.items():
            if now >= hole.ask_at and (self.stream.is_silent or self.stream.read >= hole.read_up_to):
                hole.wait_s = min(4 * hole.wait_s, _MAX_ASK_AFTER_S)
                hole.ask_at = now + hole.wait_s
                hole.read_up_to = self.stream.read + self.stream.left
                progress = self._progress(process)
                asks.append(m.Ack(*process, progress.stored, max(0, progress.passed), again=True))
        return asks
