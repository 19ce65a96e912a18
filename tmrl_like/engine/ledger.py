"""What of each worker process the stream has: what to publish, what to publish again, what to tell the workers.

No thread, no clock and no socket: the seat calls, and says what time it is (`time.monotonic()`).

- Bundles of a process are taken in order, as the trainer's `Receiver` takes them: nothing behind a gap that may still
  be filled. One message of a process is on its way at a time; what comes meanwhile waits, and is joined to the next
  one. So the stream holds nothing behind a gap, whatever is lost between here and there.
- A message is done when the stream confirms it, or the trainer has stored what is in it. Until then it is kept, and
  published again: what has no answer, and was published before another one that is confirmed, is lost; after a silence
  the oldest goes again, to see; and all of it with a new connection.
- Where the stream refuses (it is full, nobody leads it), one message at a time tries again, after a pause that grows.
- A stream gives out rising numbers. One that does not rise says that it has lost what it had confirmed (`is_lost`).
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tmrl_like.wire import messages as m
from tmrl_like.wire.records import newest_in

_JOINED_BYTES = 512 << 10  # less than the smallest message that a node must take
_WINDOW_BYTES, _WINDOW_MESSAGES = 4 << 20, 512  # on their way to the stream
_ASK_AGAIN_S = 0.5
_RESET_AGAIN_S = 5.0
_SILENCE_S, _MAX_SILENCE_S = 1.0, 2.0
_PAUSE_S, _MAX_PAUSE_S = 0.1, 1.0
_MAX_PROCESSES = 8192

Process = tuple[str, int]  # worker, incarnation


class _Taken(NamedTuple):
    """A bundle that waits."""

    header: m.Bundle
    body: memoryview
    data: bytes | memoryview
    packets: int
    last: int


@dataclass(eq=False, slots=True)
class _Message:
    """Packets of a process on their way to the stream."""

    progress: _Progress
    payload: bytes | memoryview
    size_bytes: int  # of the bundles in it
    bundles: int
    last: int
    number: int = 0  # of its newest copy
    sent_at: float = 0.0
    is_done: bool = False


class _Copy(NamedTuple):
    """A message that was published, as it was then."""

    message: _Message
    above: int  # the stream had given out this number by then
    sent_at: float


class Publication(NamedTuple):
    """Something to be published; the answer to it names the number."""

    number: int
    worker: str
    payload: bytes | memoryview


@dataclass(eq=False, slots=True)
class _Progress:
    """How far the packets of a process have come."""

    process: Process
    taken: int = 0  # up to this one they were taken, in order
    confirmed: int = 0  # … and the stream, or the trainer's log, has them
    stored: int = 0  # as the trainer says
    trained: int = 0
    waiting: deque[_Taken] = field(default_factory=deque)
    message: _Message | None = None
    asked_at: float = -1e9
    reset_at: float = -1e9  # when the trainer asked for what follows `reset_to`
    reset_to: int = 0
    rejection: str = ""


class Ledger:
    """The packets that a gateway has taken and the stream has not confirmed.

    Attributes:
        max_payload: bytes of a message that the nodes take.
        held: bundles that are kept here, and their bytes: `held_bytes`.
        refused_since: when the stream began to refuse; None: it takes what comes.
        is_lost: the stream has lost what it had confirmed: `start_over` once all workers send again what is not stored.
    """

    max_payload: int
    _probe_at: float  # when one of what was refused may try again

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self.start_over()

    def start_over(self) -> None:
        """Forget all that was taken, and what the stream has given out."""
        self.held = self.held_bytes = 0
        self.refused_since: float | None = None
        self.is_lost = False
        self._processes: dict[Process, _Progress] = {}  # the one heard of longest ago comes first
        self._ready: dict[_Progress, None] = {}  # something waits, and nothing is on its way
        self._again: dict[_Message, None] = {}  # to be published at once
        self._sent: dict[_Message, None] = {}  # no answer yet; the one that was published longest ago comes first
        self._sent_bytes = 0
        self._refused: dict[_Message, None] = {}
        self._copies: dict[int, _Copy] = {}  # that may still be answered, by number
        self._newest = 0  # that the stream has given out
        self._acks: dict[_Progress, bool] = {}  # due; True: send again, please
        self._dismissals: dict[_Progress, None] = {}

    # -- from the workers ----------------------------------------------------------------------------

    def take(self, header: m.Bundle, body: memoryview, data: bytes | memoryview, now: float) -> None:
        """Take a bundle that comes next; of one that does not, say what is wanted.

        Raises:
            DecodingError: the body holds no whole packets.
        """
        packets, last = newest_in(body)
        progress = self._progress((header.worker, header.incarnation))
        if progress.rejection or header.previous > progress.taken:
            if now - progress.asked_at > _ASK_AGAIN_S:
                progress.asked_at = now
                if progress.rejection:
                    self._dismissals[progress] = None
                else:
                    self._acks[progress] = True
        elif last <= progress.taken:
            if last <= progress.confirmed:  # the worker has not heard
                self._acks.setdefault(progress, False)
        else:
            progress.taken = last
            progress.waiting.append(_Taken(header, body, data, packets, last))
            self.held += 1
            self.held_bytes += len(data)
            if progress.message is None:
                self._ready[progress] = None

    def _progress(self, process: Process) -> _Progress:
        """The entry of a process, which has just been heard of; of very many, idle ones are forgotten."""
        progress = self._processes.pop(process, None) or _Progress(process)
        self._processes[process] = progress
        if len(self._processes) > _MAX_PROCESSES:
            idle = next(p for p in self._processes.values() if p is progress or not (p.waiting or p.message))
            if idle is not progress:
                del self._processes[idle.process]
        return progress

    # -- to the stream -------------------------------------------------------------------------------

    def begin(self, max_payload: int) -> None:
        """There is a new connection: all that is not confirmed goes out again."""
        self.max_payload = max_payload
        self._again = {**self._again, **self._sent, **self._refused}
        self._sent.clear()
        self._sent_bytes = 0
        self._refused.clear()
        self._pause_s, self._silence_s = 0.0, _SILENCE_S

    def due(self, now: float) -> list[Publication]:
        """What is to be published now, in this order."""
        found = []
        oldest = next(iter(self._sent), None)
        if oldest is not None and now - oldest.sent_at > self._silence_s:
            self._silence_s = max(self._silence_s, min(2 * self._silence_s, _MAX_SILENCE_S))
            self._again.setdefault(oldest)
        if self._refused and now >= self._probe_at and not self._again:
            self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
            self._probe_at = now + self._pause_s
            probe = next(iter(self._refused))
            del self._refused[probe]
            found.append(self._publish(probe, now))
        again, self._again = self._again, {}
        found += [self._publish(message, now) for message in again]
        while self._ready and not self._refused and self._has_window():
            progress = next(iter(self._ready))
            del self._ready[progress]
            if message := self._joined(progress):
                found.append(self._publish(message, now))
        return found

    def _has_window(self) -> bool:
        return self._sent_bytes < _WINDOW_BYTES and len(self._sent) < _WINDOW_MESSAGES

    def _joined(self, progress: _Progress) -> _Message | None:
        """The next message of a process; None: it has none, or one that is too large."""
        waiting = progress.waiting
        if not waiting:
            return None
        first = waiting[0]
        if len(first.data) > self.max_payload:
            self._drop(progress)
            sizes = (f"{size / 1e6:.1f} MB" for size in (len(first.data), self.max_payload))
            progress.rejection = "a packet takes {}, and the engine's nodes take {} at most".format(*sizes)
            self._dismissals[progress] = None
            return None
        bundles, packets, size_bytes = [waiting.popleft()], first.packets, len(first.data)
        while waiting and packets + waiting[0].packets <= m.MAX_BUNDLE_PACKETS:
            if size_bytes + len(waiting[0].data) > _JOINED_BYTES:
                break
            bundles.append(waiting.popleft())
            packets += bundles[-1].packets
            size_bytes += len(bundles[-1].data)
        headers = [bundle.header for bundle in bundles]
        header = m.Bundle(
            *progress.process,
            samples=sum(header.samples for header in headers),
            previous=first.header.previous,
            lost_samples=max(header.lost_samples for header in headers),
            awaits=any(header.awaits for header in headers),
            epoch_s=first.header.epoch_s,
        )
        payload = m.encode(header, *(bundle.body for bundle in bundles))
        last = bundles[-1].last
        progress.message = _Message(progress, payload, size_bytes, len(bundles), last)
        return progress.message

    def _publish(self, message: _Message, now: float) -> Publication:
        if message not in self._sent:
            self._sent_bytes += len(message.payload)
        self._sent.pop(message, None)
        self._sent[message] = None
        message.number, message.sent_at = next(self._numbers), now
        self._copies[message.number] = _Copy(message, self._newest, now)
        return Publication(message.number, message.progress.process[0], message.payload)

    # -- from the stream -----------------------------------------------------------------------------

    def on_stored(self, number: int, sequence: int, now: float) -> None:
        """The stream has what was published under `number`, and gave it its own number `sequence`."""
        copy = self._copies.pop(number, None)
        if copy is None:
            return
        if sequence <= copy.above:
            self.is_lost = True
            return
        self._newest = max(self._newest, sequence)
        self._publish_earlier(number)
        self._silence_s = max(_SILENCE_S, 2 * (now - copy.sent_at))
        if not copy.message.is_done:
            self._finish(copy.message)

    def _publish_earlier(self, number: int, before: float = float("inf")) -> None:
        """What was published earlier, and has no answer, is lost: answers come in order."""
        for earlier in list(itertools.takewhile(lambda n: n < number, self._copies)):
            message, _, sent_at = self._copies[earlier]
            if sent_at < before:
                del self._copies[earlier]
                if message.number == earlier and message in self._sent:
                    self._again[message] = None

    def on_refused(self, number: int, now: float) -> None:
        """The stream has not taken what was published under `number`, or nobody leads it."""
        copy = self._copies.pop(number, None)
        if copy is None or copy.message.number != number or copy.message not in self._sent:
            return
        del self._sent[copy.message]
        self._sent_bytes -= len(copy.message.payload)
        self._refused[copy.message] = None
        if self.refused_since is None:
            self.refused_since = now
        if not self._pause_s:
            self._pause_s = _PAUSE_S
            self._probe_at = now + self._pause_s

    def _finish(self, message: _Message) -> None:
        """It is confirmed: the next one may go, and what was refused may try again."""
        progress = message.progress
        progress.confirmed = message.last
        self._acks.setdefault(progress, False)
        self._let_go(message)
        if progress.waiting:
            self._ready[progress] = None
        self.refused_since = None
        self._pause_s = 0.0
        self._again |= self._refused
        self._refused.clear()

    def _let_go(self, message: _Message) -> None:
        message.is_done = True
        message.progress.message = None
        if message in self._sent:
            del self._sent[message]
            self._sent_bytes -= len(message.payload)
        self._again.pop(message, None)
        self._refused.pop(message, None)
        self._copies.pop(message.number, None)
        self.held -= message.bundles
        self.held_bytes -= message.size_bytes

    def _drop(self, progress: _Progress) -> None:
        """Keep nothing more of a process."""
        if progress.message is not None:
            self._let_go(progress.message)
        while progress.waiting:
            self._forget_first(progress)

    def _forget_first(self, progress: _Progress) -> None:
        self.held -= 1
        self.held_bytes -= len(progress.waiting.popleft().data)

    # -- from the trainer ----------------------------------------------------------------------------

    def on_ack(self, ack: m.Ack, now: float) -> bool:
        """Note how far the trainer is; False: nothing is known here of that process."""
        progress = self._processes.get((ack.worker, ack.incarnation))
        if progress is None:
            return False
        progress.stored = ack.stored
        progress.trained = max(progress.trained, ack.trained)
        is_on_its_way = progress.reset_to == ack.received and now - progress.reset_at < _RESET_AGAIN_S
        if ack.again and ack.received < progress.confirmed and not is_on_its_way:  # else it comes from here
            self._drop(progress)
            progress.taken = progress.confirmed = ack.received
            progress.reset_to, progress.reset_at = ack.received, now
            self._acks[progress] = True
        message = progress.message
        if message is not None and message.last <= ack.stored:  # the trainer heard it itself
            self._publish_earlier(message.number, now - _ASK_AGAIN_S)
            self._finish(message)
        while progress.waiting and progress.waiting[0].last <= ack.stored:
            self._forget_first(progress)
        progress.taken = max(progress.taken, ack.stored)
        progress.confirmed = max(progress.confirmed, ack.stored)
        self._acks.setdefault(progress, False)
        return True

    def on_dismissal(self, dismissal: m.Dismissal) -> None:
        """The trainer takes nothing of that process."""
        progress = self._processes.pop((dismissal.worker, dismissal.incarnation), None)
        if progress is not None:
            self._drop(progress)
            self._acks.pop(progress, None)

    # -- to the workers ------------------------------------------------------------------------------

    def words(self) -> list[m.Ack | m.Dismissal]:
        """What is to be said to the workers."""
        acks, self._acks = self._acks, {}
        dismissals, self._dismissals = self._dismissals, {}
        words: list[m.Ack | m.Dismissal] = []
        for progress, again in acks.items():
            words.append(m.Ack(*progress.process, progress.stored, progress.confirmed, again, progress.trained))
        return words + [m.Dismissal(*progress.process, progress.rejection) for progress in dismissals]
