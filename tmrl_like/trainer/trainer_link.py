"""The trainer's connection: receives samples and sends acknowledgements and policies, beside the
training thread.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tmrl_like.base import clocks, script
from tmrl_like.base.budgets import Lines, Turns
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import DivergedError, NoWorkerError
from tmrl_like.metrics.reading import Record
from tmrl_like.metrics.sinks import as_json
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.weights import WeightsCopy, refuse_diverged
from tmrl_like.session.session import Session, file_id
from tmrl_like.trainer.fleet import Fleet
from tmrl_like.trainer.interface import TrainerInterface
from tmrl_like.trainer.sample_ages import FreshnessLimits, WorkerClocks
from tmrl_like.trainer.saver import Publication, Saver
from tmrl_like.transport import PeerLink
from tmrl_like.types import Delivery, Receipt
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import split_policy

log = logging.getLogger("tmrl_like.trainer")

_TICK_S = 0.05
TURN_S = 0.01  # how long packets of all workers are read before other work gets a turn
_WORKER_BYTES = 64 << 20  # of one worker that wait to be read
_REPORTS_KEPT = 500
_SHORTAGE_AGAIN_S = 60.0
_UNREAD_BYTES = 1000  # about what a waiting packet takes besides its message


class TrainerLink(TrainerInterface):
    """The connection over a session with the server.

    Attributes:
        session: keeps the connection; raises the error that ended it.
    """

    def __init__(
        self,
        link: PeerLink,
        name: str,
        spaces: m.Spaces,
        receiver: Receiver | None = None,
        freshness: FreshnessLimits | None = None,
        saver: Saver | None = None,
        version: int = 0,
        rank: m.Rank = m.ALONE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect, without waiting for the server.

        `receiver` knows what the memory already holds, and `version` is that of the policy
        published last; both may come from an earlier process of this training. `saver` keeps
        published policies; the rest is as in `Session`. Of several trainers, only rank 0 publishes.
        """
        self._where = link.where
        self._receiver = receiver or Receiver()
        self._clock = clock
        self._unread: Turns[Delivery] = Turns(_WORKER_BYTES, self._receiver.total_bytes, clock)
        self._turn_left_s = TURN_S
        self._freshness = freshness or FreshnessLimits()
        self._say_short = Lines(log, 1, 1 / _SHORTAGE_AGAIN_S)
        self._inbox: deque[Delivery] = deque()
        self._arrived = threading.Event()
        super().__init__(saver, version, Fleet(self._freshness.max_lag_versions))
        self._rank = rank
        self._publishes = rank.number == 0
        self._clocks = WorkerClocks()
        self._reports: deque[Record] = deque(maxlen=_REPORTS_KEPT)
        self._lock = threading.Lock()  # guards the publications, which both threads change
        self._next_publication: Publication | None = None
        self._publication: Publication | None = None  # being sent, or sent last
        # frames of the publication that are not sent yet …
        self._frames: Iterator[bytes] = iter(())
        self._frame: bytes | None = None  # … after this one; None: all are sent
        self._memory: list[WeightsCopy] = []  # of publications, in use or free
        self._divergence: DivergedError | None = None
        hello = m.Hello.of_this_process(
            "trainer",
            name,
            spaces=spaces,
            model_file=file_id(None if saver is None else saver.path),
            rank=rank,
            run=self._receiver.run,
            samples=self._receiver.began_with,
        )
        self.session = Session(link, self, hello, clock)

    # -- the training thread -----------------------------------------------------------------------

    def retrieve(self, timeout_s: float = 0.0) -> list[Delivery]:
        """Return what has arrived, oldest first.

        Raises:
            RefusedError, CredentialsError: the connection ended permanently.
            DivergedError: weights that were to be published are not finite.
        """
        self.session.check()
        if self._divergence is not None:
            raise self._divergence
        self._arrived.clear()
        if not self._inbox and timeout_s > 0:
            self._arrived.wait(timeout_s)
        deliveries = [self._inbox.popleft() for _ in range(len(self._inbox))]
        return [
            d for d in deliveries if d.receipt is None or not self._receiver.rejection_of(d.receipt)
        ]

    def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """Note that the memory has these samples; they are then stored and acknowledged."""
        self._receiver.confirm(
            [delivery.receipt for delivery in deliveries if delivery.receipt is not None]
        )
        self.session.wake()

    def reject(self, receipt: Receipt, reason: str) -> None:
        self._receiver.reject(receipt, reason)
        self.session.wake()

    def note_trained(self, receipt: Receipt) -> None:
        self._receiver.note_trained(receipt)
        self.session.wake()

    def report(self, record: Record) -> None:
        """Send a record of the metrics to watchers. Records that the connection does not take are
        lost.
        """
        if self._publishes:
            self._reports.append(record)

    def broadcast_model(self, model: ActorModule) -> int:
        """Publish the weights: this copies them, and the connection's thread does the rest. If
        several versions wait, only the newest is sent.

        Weights that are not finite are not sent; `retrieve` raises then.

        Raises:
            PolicyError: a dtype that weights cannot have.
        """
        version = self.newest_version + 1
        publication = self._copy(model, version) if self._publishes else None
        with self._lock:
            self._next_publication = publication
            self.newest_version = version
        if publication is not None and self._saver is not None:
            self._saver.save(publication)
        self.session.wake()
        return version

    def _copy(self, model: ActorModule, version: int) -> Publication:
        """Copy the weights, into memory that no publication needs any more if any fits them."""
        parameters = model.state_dict()
        held = [] if self._saver is None else self._saver.held
        with self._lock:
            self._next_publication = None  # its memory may be overwritten
            in_use = [one.weights for one in (*held, self._publication) if one is not None]
        free = (one for one in self._memory if one not in in_use and one.fits(parameters))
        weights = next(free, None) or WeightsCopy(parameters)  # which takes longer than copying
        self._memory = [*in_use, weights]
        weights.fill(parameters)
        return Publication(version, time.time(), weights)

    def fleet(self) -> dict[str, float]:
        return (
            self.workers.metrics(self.newest_version)
            | self._receiver.metrics()
            | {"dropped_stale_samples_total": self._freshness.dropped_samples}
        )

    def who_is_missing(self) -> str:
        missing = self.workers.describe() or "no worker has come"
        rank = self._rank
        if rank.size > 1:
            missing = (
                f"rank {rank.number} gets only workers whose names assign them to it: start at "
                f"least {rank.size}, with names that end in numbers, worker-1, worker-2, …; "
                f"{missing}"
            )
        if not self.session.connected:
            missing = (
                f"there is no connection to the server at {self._where}; before that: {missing}"
            )
        failure = script.failures.get(self._where)
        if failure and not self.workers.is_driving():
            raise NoWorkerError(
                f"the worker of this script has failed, and no other one drives: {failure}"
            )
        return missing

    def close(self, flush_s: float = 1.0) -> None:
        """Send what is waiting, and disconnect. Calling it twice is fine."""
        self.session.close(flush_s)

    # -- the connection's thread (`conversation.Role`) ---------------------------------------------

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        """Send the last policy again to a server that has none, and on a new connection: the one
        before may have lost it.
        """
        if welcome.policy_wanted or is_new:
            with self._lock:
                self._next_publication = self._next_publication or self._publication

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        """Take samples, to be read in turns, and heartbeats."""
        if isinstance(message, m.SamplePacket):
            ahead_s = self._clocks.ahead_s(message.worker, message.epoch_s)
            taken = self._receiver.take(
                message,
                body,
                data,
                self._clock(),
                lambda packet: self._freshness.admit(
                    packet, clocks.unix_s(), self.newest_version, ahead_s
                ),
                ahead_s,
            )
            self._unread.add(message.worker, taken, len(data) + _UNREAD_BYTES)
            self._read_unread()
        elif isinstance(message, m.Beat):
            self._clocks.on_beat(message)
            if self._publishes:  # otherwise the beat only serves as a reminder
                self.workers.on_beat(message, self.newest_version)
            if message.condition.awaits:
                self._receiver.remind(message.worker)

    def _read_unread(self) -> None:
        """Read packets for the rest of the turn; the others wait for the next one."""
        if self._turn_left_s <= 0:
            return
        try:
            self._turn_left_s -= self._unread.work(self._inbox.append, self._turn_left_s)
        except MemoryError:  # this packet, and those behind it, are not acknowledged
            self._turn_left_s = 0.0
            self._say_short(
                "memory",
                logging.ERROR,
                "no memory is left for samples that arrive: training goes on, and the workers send "
                "them again",
            )

    def on_tick(self, send: Callable[[bytes], bool], connected: bool) -> float:
        """Read waiting packets, hand them over, and store the samples that are in the memory; send
        acknowledgements and policy frames.
        """
        self._turn_left_s = TURN_S
        self._read_unread()
        self._turn_left_s = TURN_S
        if self._inbox:
            self._arrived.set()
        try:
            self._receiver.write(self._clock())
        except MemoryError:  # samples that are not stored are not acknowledged
            self._say_short(
                "memory",
                logging.ERROR,
                "no memory is left to store samples: training goes on, and they are stored later",
            )
        if not connected:
            return 0.0 if self._unread else _TICK_S
        # the policy first, so that a worker in lockstep has it when it continues
        is_sent = self._send_policy(send)
        self._receiver.answer(send)
        while self._reports:
            send(m.encode(m.Report(), as_json(self._reports.popleft())))
        return 0.0 if self._unread else _TICK_S if is_sent else 0.001

    def _send_policy(self, send: Callable[[bytes], bool]) -> bool:
        """Send as much of the newest policy as the connection takes. Returns whether nothing is
        left to send.
        """
        if self._frame is None:
            with self._lock:
                policy = self._next_publication
                self._next_publication = None
                self._publication = policy or self._publication
            self._frames = iter(()) if policy is None else self._frames_of(policy)
            self._frame = next(self._frames, None)
        while self._frame is not None:
            if not send(self._frame):
                return False
            self._frame = next(self._frames, None)
        return self._next_publication is None

    def _frames_of(self, policy: Publication) -> Iterator[bytes]:
        """Yield the frames of a policy; none if it is not finite."""
        weights = policy.weights
        try:
            weights.wait()
            refuse_diverged(weights.tensors)
        except DivergedError as error:
            self._divergence = error
        else:
            yield from split_policy(weights.content, policy.version, policy.published_at_s)

    def pending(self) -> bool:
        return bool(self._receiver.pending or self._frame or self._next_publication)

    def beat(self) -> m.Beat:
        return m.Beat()
