"""The trainer's side of the wire: samples in, acknowledgements and policies out, beside the training thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmrl_like.actor import ActorModule
from tmrl_like.errors import DecodingError
from tmrl_like.files import write_atomically
from tmrl_like.networking.fleet import Fleet
from tmrl_like.networking.session import Session
from tmrl_like.transport.base import PeerLink
from tmrl_like.types import Buffer, Delivery, EpisodeStats, Receipt
from tmrl_like.weights import serialize_weights
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body
from tmrl_like.wire.policy import split_policy

log = logging.getLogger("tmrl_like.trainer")

_TICK_S = 0.05
_ASK_AGAIN_S = 0.5
_MAX_INBOX_BYTES = 1 << 30
_VERSIONS_KEPT = 10_000
_MAX_REASON = 2000


@dataclass
class _Process:
    """Bookkeeping for one worker process."""

    received: int = 0  # packets up to this number were taken, in order
    confirmed: int = 0  # … and are in the memory
    stored: int = 0  # … and on the disk
    breaks: int = 0  # how often packets were missing for good
    lost_samples: int = 0
    asked_again_at: float = 0.0
    misfit: str = ""  # why nothing of it is taken any more

    def may_ask_again(self) -> bool:
        """Whether it was not asked just now; from here on it was."""
        now = time.monotonic()
        if now - self.asked_again_at <= _ASK_AGAIN_S:
            return False
        self.asked_again_at = now
        return True


@dataclass
class _Publication:
    """A policy on its way out."""

    version: int
    published_at_s: float
    pieces: list[bytes | memoryview] = field(repr=False)
    frames: Iterator[bytes] | None = None
    blocked: bytes | None = None


class TrainerLink:
    """Implements `training_offline.TrainerInterface` over a session with the server."""

    def __init__(
        self,
        link: PeerLink,
        where: str,
        name: str,
        spaces: m.Spaces,
        model_path: Path | None = None,
        bookkeeping: dict[str, Any] | None = None,
        has_checkpoints: bool = False,
        worker_stalled_after_s: float = 30.0,
    ) -> None:
        """Connect, without waiting for the server.

        Args:
            link: an open connection.
            where: the server's address, for messages.
            name: this trainer's name.
            spaces: compared with the workers'.
            model_path: where the newest weights are kept; None: nowhere.
            bookkeeping: what a checkpoint's memory holds already (`bookkeeping()` of the trainer before).
            has_checkpoints: workers keep samples until `confirm` or `checkpoint_written` says that they are
                stored; otherwise only until they are in the memory.
            worker_stalled_after_s: a worker that drives one version for so long while newer ones are published
                is told.
        """
        self._lock = threading.Lock()
        self._inbox: deque[Delivery] = deque()
        self._inbox_bytes = 0
        self._arriving: list[Delivery] = []  # the connection's thread collects here, and hands over per turn
        self._arrived = threading.Condition(self._lock)
        self._acks: dict[tuple[str, int], bool] = {}  # due acknowledgements; True: send again, please
        self._dismissals: set[tuple[str, int]] = set()  # to be sent
        self._has_checkpoints = has_checkpoints
        self._processes: dict[tuple[str, int], _Process] = {}
        self._fleet = Fleet(worker_stalled_after_s)
        self._next_publication: _Publication | None = None
        self._publication: _Publication | None = None
        self._last_publication: _Publication | None = None
        self._published: dict[int, float] = {}
        self._version = 0
        self._malformed = 0
        self._saver = _Saver(model_path)
        self._restore(bookkeeping or {})
        self._session = Session(link, where, self, "trainer", name, spaces, model_path)

    # -- the training thread -------------------------------------------------------------------------

    def retrieve(self, timeout_s: float = 0.0) -> list[Delivery]:
        """Take what has arrived, oldest first; waits up to `timeout_s` for something.

        Raises:
            RefusedError, CredentialsError: the connection ended for good.
        """
        self._session.check()
        with self._arrived:
            if not self._inbox and timeout_s > 0:
                self._arrived.wait(timeout_s)
            deliveries = [delivery for delivery in self._inbox if not self._is_misfit(delivery)]
            self._inbox.clear()
            self._inbox_bytes = 0
        return deliveries

    def confirm(self, deliveries: Sequence[Delivery], stored: bool = False) -> None:
        """Acknowledge: their samples are in the memory.

        Args:
            deliveries: what `retrieve` gave.
            stored: all samples in the memory survive a kill: workers may forget them.
        """
        with self._lock:
            for receipt in [delivery.receipt for delivery in deliveries if delivery.receipt is not None]:
                process = self._processes[receipt[:2]]
                process.confirmed = max(process.confirmed, receipt.sequence)
                self._acks.setdefault(receipt[:2], False)
            if stored or not self._has_checkpoints:
                for key, process in list(self._processes.items()):
                    self._note_stored(key, process.confirmed)
        self._session.wake()

    def refuse(self, receipt: Receipt, reason: str) -> None:
        """Take nothing more of a worker process, and acknowledge nothing more: its samples do not fit the memory.

        Args:
            receipt: of the first packet that does not fit.
            reason: what was expected, what was found.
        """
        reason = " ".join(reason.split())[:_MAX_REASON]
        with self._lock:
            self._processes[receipt[:2]].misfit = reason
            self._dismissals.add(receipt[:2])
        log.error(
            "samples of worker %s are refused, training goes on without them: they do not fit those in the memory: %s",
            receipt.worker,
            reason,
        )
        self._session.wake()

    def _is_misfit(self, delivery: Delivery) -> bool:
        return delivery.receipt is not None and bool(self._processes[delivery.receipt[:2]].misfit)

    def checkpoint_written(self, bookkeeping: dict[str, Any]) -> None:
        """What `bookkeeping` names is on disk: workers may forget it."""
        with self._lock:
            for worker, session, confirmed, *_ in bookkeeping["processes"]:
                self._note_stored((worker, session), confirmed)
        self._session.wake()

    def _note_stored(self, key: tuple[str, int], sequence: int) -> None:
        process = self._processes[key]
        if process.stored < sequence:
            process.stored = sequence
            self._acks.setdefault(key, False)

    def broadcast_model(self, model: ActorModule) -> int:
        """Publish the weights as they are now; copies them, and does not wait.

        A version that is not sent yet when the next one is published is skipped.
        """
        pieces = serialize_weights(model.snapshot())
        with self._lock:
            self._version += 1
            publication = _Publication(self._version, time.time(), pieces)
            self._published[self._version] = publication.published_at_s
            self._published.pop(self._version - _VERSIONS_KEPT, None)
            self._next_publication = publication
        self._session.wake()
        return publication.version

    @property
    def newest_version(self) -> int:
        """The version published last; 0: none."""
        return self._version

    def published_at(self, version: int) -> float | None:
        """Unix time of a version's publication; None where unknown."""
        return self._published.get(version)

    def fleet(self) -> dict[str, float]:
        """The workers' condition, from their latest signs of life, and what they did since the last call."""
        return self._fleet.metrics(self._version) | {
            "lost_samples_total": sum(p.lost_samples for p in list(self._processes.values())),
            "refused_packets_total": self._malformed,
            "refused_workers_total": sum(bool(p.misfit) for p in list(self._processes.values())),
        }

    def worker_versions(self) -> dict[str, int]:
        """The version of the policy that drives now, of each living worker by its name."""
        return self._fleet.versions()

    # -- bookkeeping that belongs to the memory ------------------------------------------------------

    def bookkeeping(self) -> dict[str, Any]:
        """What is in the memory, per worker process: plain values for a checkpoint."""
        with self._lock:
            done = [[*key, p.confirmed, p.breaks, p.lost_samples] for key, p in list(self._processes.items())]
        return {"version": self._version, "processes": done}

    def _restore(self, bookkeeping: dict[str, Any]) -> None:
        self._version = int(bookkeeping.get("version", 0))
        for worker, session, confirmed, breaks, lost in bookkeeping.get("processes", ()):
            self._processes[(worker, session)] = _Process(confirmed, confirmed, confirmed, breaks, lost)
            self._acks[(worker, session)] = False

    def close(self, flush_s: float = 1.0) -> None:
        """Send what waits, leave. Twice is fine."""
        self._session.close(flush_s)
        self._saver.close()

    def wait_connected(self, timeout_s: float) -> bool:
        """Wait until the server let this trainer in; raises what it refused it for."""
        return self._session.wait_connected(timeout_s)

    def check(self) -> None:
        """Raise what ended the connection for good, if anything did."""
        self._session.check()

    # -- the connection's thread (`session.Role`) ----------------------------------------------------

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """A server without a policy gets the last one again."""
        if welcome.policy_wanted and self._last_publication is not None and self._publication is None:
            last = self._last_publication
            self._publication = _Publication(last.version, last.published_at_s, last.pieces)

    def on_message(self, message: m.AnyMessage, body: memoryview) -> None:
        """Samples and signs of life."""
        if isinstance(message, m.SamplePacket):
            self._on_packet(message, body)
        elif isinstance(message, m.Bundle):
            self._on_bundle(message, body)
        elif isinstance(message, m.Beat):
            self._fleet.on_beat(message, self._version)

    def _on_bundle(self, bundle: m.Bundle, body: memoryview) -> None:
        try:
            for packet, packet_body in m.decode_bundle(body):
                if not isinstance(packet, m.SamplePacket) or (packet.worker, packet.session) != (
                    bundle.worker,
                    bundle.session,
                ):
                    raise DecodingError("a bundle holds something else than its worker's packets")
                self._on_packet(packet, packet_body)
        except DecodingError as error:
            self._refuse(bundle, error)

    def _on_packet(self, packet: m.SamplePacket, body: memoryview) -> None:
        """Take packets of a worker process in order, each once."""
        key = (packet.worker, packet.session)
        process = self._processes.get(key)
        if process is None:  # whatever it sent before was for a trainer of another run
            before = (packet.oldest or packet.sequence) - 1
            process = self._processes[key] = _Process(before, before, before)
        if process.misfit:
            self._dismiss_again(key, process)
            return
        if packet.sequence <= process.received:
            self._acks.setdefault(key, False)
            return
        if packet.oldest > process.received + 1:
            self._skip_what_is_gone(packet.worker, process, packet.oldest - 1)
        if packet.sequence - packet.gap > process.received + 1 or self._inbox_bytes > _MAX_INBOX_BYTES:
            self._ask_again(key, process)
            return
        if packet.sequence > process.received + 1:
            self._skip_what_is_gone(packet.worker, process, packet.sequence - 1)
        self._inbox_bytes += packet.body_bytes
        process.received = packet.sequence
        process.lost_samples = packet.lost_samples
        buffer = self._buffer_of(packet, body, process)
        episodes = tuple(_to_stats(packet.worker, e) for e in packet.episodes)
        receipt = Receipt(*key, packet.sequence, process.breaks, process.lost_samples)
        self._arriving.append(Delivery(buffer, episodes, receipt))

    def _buffer_of(self, packet: m.SamplePacket, body: memoryview, process: _Process) -> Buffer:
        """Decode; a packet that cannot be decoded is counted, and what follows does not continue what was before."""
        blocks: tuple[Any, ...] = ()
        if packet.samples:
            try:
                blocks = (decode_body(packet, body),)
            except DecodingError as error:
                self._refuse(packet, error)
                process.breaks += 1
        return Buffer(stream=f"{packet.worker}/{packet.session}/{packet.run}/{process.breaks}", blocks=blocks)

    def _ask_again(self, key: tuple[str, int], process: _Process) -> None:
        """Packets are missing in between: what comes after them has to wait for them."""
        if process.may_ask_again():
            with self._lock:
                self._acks[key] = True

    def _dismiss_again(self, key: tuple[str, int], process: _Process) -> None:
        """It was refused and goes on sending: it does not know yet, or its successor found its packets."""
        if process.may_ask_again():
            with self._lock:
                self._dismissals.add(key)

    def _skip_what_is_gone(self, worker: str, process: _Process, last: int) -> None:
        """The worker has the packets up to `last` no more: go on after them, as a new run."""
        log.warning("packets %d to %d of worker %s are lost for good", process.received + 1, last, worker)
        process.received = last
        process.breaks += 1

    def _refuse(self, packet: m.SamplePacket | m.Bundle, error: DecodingError) -> None:
        self._malformed += 1
        if self._malformed == 1:
            log.error("refused a packet of worker %s: %s; more of the kind are only counted", packet.worker, error)

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Hand over what arrived; send acknowledgements and policy frames."""
        if self._arriving:
            with self._arrived:
                self._inbox.extend(self._arriving)
                self._arrived.notify()
            self._arriving.clear()
        if not connected:
            return _TICK_S
        with self._lock:
            acks, self._acks = self._acks, {}
            due = [(key, self._processes[key], again) for key, again in acks.items()]
            messages = [m.Ack(*key, p.stored, p.received if again else p.confirmed, again) for key, p, again in due]
            dismissed, self._dismissals = self._dismissals, set()
        for message in messages:
            if not send(m.encode(message)):
                with self._lock:
                    self._acks.setdefault((message.worker, message.session), message.again)
        for key in dismissed:
            if not send(m.encode(m.Dismissal(*key, self._processes[key].misfit))):
                with self._lock:
                    self._dismissals.add(key)
        return _TICK_S if self._send_policy(send) else 0.001

    def _send_policy(self, send: Callable[[bytes], bool]) -> bool:
        """Send frames until the connection takes no more; True when all are sent."""
        if self._publication is None:
            with self._lock:
                self._publication, self._next_publication = self._next_publication, None
        publication = self._publication
        if publication is None:
            return True
        if publication.frames is None:
            publication.frames = split_policy(publication.pieces, publication.version, publication.published_at_s)
        while (frame := publication.blocked or next(publication.frames, None)) is not None:
            publication.blocked = None
            if not send(frame):
                publication.blocked = frame
                return False
        self._last_publication, self._publication = publication, None
        self._saver.save(publication.pieces)
        return self._next_publication is None

    def pending(self) -> bool:
        """Whether acknowledgements or a policy wait to be sent."""
        return bool(self._acks or self._dismissals or self._publication or self._next_publication)

    def beat(self) -> m.Beat:
        """A trainer's sign of life."""
        return m.Beat()


class _Saver:
    """Writes the newest weights to disk in a thread of its own; skips those it had no time for."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._waiting: list[bytes | memoryview] | None = None
        self._ready = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        if path is not None:
            self._thread = threading.Thread(target=self._run, name="tmrl-saver", daemon=True)
            self._thread.start()

    def save(self, pieces: list[bytes | memoryview]) -> None:
        with self._ready:
            self._waiting = pieces
            self._ready.notify()

    def close(self) -> None:
        with self._ready:
            self._closing = True
            self._ready.notify()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        assert self._path is not None
        failed = False
        while True:
            with self._ready:
                while self._waiting is None and not self._closing:
                    self._ready.wait()
                pieces, self._waiting = self._waiting, None
            if pieces is None:
                return
            try:
                write_atomically(self._path, *pieces)
                failed = False
            except OSError as error:
                if not failed:
                    log.error("cannot save the policy to %s: %s; training goes on", self._path, error)
                failed = True


def _to_stats(worker: str, episode: m.Episode) -> EpisodeStats:
    return EpisodeStats(
        worker=worker,
        test=episode.test,
        return_=episode.return_,
        steps=episode.steps,
        terminated=episode.terminated,
        truncated=episode.truncated,
        finished_at_s=episode.finished_at_s,
        policy_version=episode.policy_version,
        duration_s=episode.duration_s,
        overruns=episode.overruns,
        fault=episode.fault,
    )
