"""The link's end of delivery: sends what the control loops have appended, and what dead processes
have left, to the trainer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tmrl_like.base.budgets import Bucket
from tmrl_like.delivery.folder import has_writer, is_private, leave, lock_for_reading
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.segments import incarnations_in
from tmrl_like.delivery.sender import Send, Sender
from tmrl_like.delivery.source import Source
from tmrl_like.wire import messages as m

log = logging.getLogger("tmrl_like.delivery")

_FULL_AGAIN_S = 600.0
_TURN_S = 0.1  # of a backlog; between two turns, signs of life are sent


class Outbox:
    """Sends the entries of a worker, in order for each process, until they are stored.

    All state is in the files: if the outbox is killed at any point, the next outbox of the folder
    continues.

    Attributes:
        worker: the worker's name.
        incarnations: incarnations of this worker's control loops.
    """

    def __init__(
        self,
        path: Path,
        worker: str,
        incarnations: Sequence[int],
        dead: Sequence[int],
        options: OutboxOptions,
        clock: Callable[[], float] = time.monotonic,
        epoch_s: float = 0.0,
    ) -> None:
        """Lock the worker's folder and take over the entries in it.

        `incarnations` are those of the `SampleLog`s, and `dead` is that of their `WorkerFolder`:
        if the control loops have ended, other incarnations in the folder are those of a successor.
        `epoch_s` is that of the process that fills the logs, see `SamplePacket`.

        Raises:
            ConfigError: another process still sends what is in the folder.
        """
        self.worker = worker
        self.incarnations = tuple(incarnations)
        self._path = path
        self._options = options
        self._clock = clock
        self._lock = lock_for_reading(path)
        # the connection's thread sends; other threads ask how far it is, and close
        self._busy = threading.Lock()
        self._full = Bucket(1, 1 / _FULL_AGAIN_S)  # limits log lines about lost samples
        self._lost_by_dead = 0
        left = [incarnation for incarnation in incarnations_in(path) if incarnation in dead]
        self.takes_over = tuple(left[: m.MAX_TAKEN_OVER])
        now = clock()
        try:
            self._senders = {  # the next one to send comes first; none: the outbox is closed
                incarnation: Sender(
                    Source(path, worker, incarnation, incarnation in self.takes_over, epoch_s),
                    options,
                    now,
                )
                for incarnation in (*self.takes_over, *self.incarnations)
            }
        except BaseException:
            self._lock.release()
            raise
        for incarnation in self.takes_over:
            self._forget(incarnation, 0)
        kept = sum(sender.kept for sender in self._senders.values() if sender.source.is_dead)
        if kept:
            log.info("sending %d samples that earlier processes left in %s", kept, path)
        self._lost_said = self._lost()

    @property
    def lost_samples(self) -> int:
        """Number of samples for which there was no room."""
        with self._busy:
            return self._lost()

    def _lost(self) -> int:
        lost = (sender.source.lost_samples for sender in self._senders.values())
        return self._lost_by_dead + sum(lost)

    def pump(self, send: Send, may_send: bool, awaits: bool = False) -> None:
        """Send the packets that are due, as far as the window, the connection and a turn's time
        allow; `awaits`: see `SamplePacket`.
        """
        with self._busy:
            self._say_what_is_lost()
            if self._senders and may_send:
                self._send(send, awaits)

    def _send(self, send: Send, awaits: bool) -> None:
        now = self._clock()
        for sender in self._senders.values():
            sender.mind_silence(now)
        idle = 0  # consecutive senders of which nothing was due
        while (
            idle < len(self._senders)
            and self._in_flight_bytes < self._options.window_bytes
            and self._clock() - now < _TURN_S
        ):
            incarnation, sender = next(iter(self._senders.items()))
            is_taken = sender.send_one(send, now, awaits)
            if is_taken is False:
                return  # this sender stays first
            idle = 0 if is_taken else idle + 1
            self._senders[incarnation] = self._senders.pop(incarnation)

    @property
    def _in_flight_bytes(self) -> int:
        return sum(
            sender.in_flight_bytes for sender in self._senders.values() if not sender.is_aside
        )

    def _say_what_is_lost(self) -> None:
        lost, before = self._lost(), self._lost_said
        self._lost_said = lost
        if lost > before and self._full.take(1, self._clock()):
            log.warning(
                "what waits for the trainer leaves no room: new samples are dropped and counted"
            )

    def hasten(self) -> None:
        """Send all entries appended so far with the next `pump`, e.g. because none follow."""
        with self._busy:
            for sender in self._senders.values():
                sender.hasten()

    def on_ack(self, ack: m.Ack) -> None:
        """Process an acknowledgement: forget what is stored, and send again what is missing."""
        with self._busy:
            sender = self._senders.get(ack.incarnation)
            if sender is not None:
                sender.on_ack(ack, self._clock())
                self._forget(ack.incarnation, ack.stored)

    def _forget(self, incarnation: int, entry: int) -> None:
        """Forget the entries up to this one, which are stored; if nothing else is left of a dead
        process, remove its files.
        """
        source = self._senders[incarnation].source
        source.forget(entry)
        if source.is_dead and source.is_empty:
            self._lost_by_dead += source.lost_samples
            source.close(remove=True)
            del self._senders[incarnation]

    def send_again(self, to_another_trainer: bool) -> None:
        """Send again what was in flight; to another trainer, also what was received and is not
        stored.
        """
        with self._busy:
            for sender in self._senders.values():
                sender.is_aside &= not to_another_trainer
                sender.send_again(0 if to_another_trainer else sender.received)

    def stored(self, incarnation: int) -> int:
        """Return the entry of a control loop up to which all are stored, and are not sent again to
        any trainer.
        """
        with self._busy:
            sender = self._senders.get(incarnation)
            return 0 if sender is None else sender.source.stored

    def set_aside(self, incarnation: int, reason: str) -> None:
        """Keep what an earlier process left, and send it only to another trainer: this one does not
        take it.
        """
        with self._busy:
            sender = self._senders.get(incarnation)
            if sender is None or not sender.source.is_dead or sender.is_aside:
                return
            sender.is_aside = True
            kept = sender.kept
        log.error(
            "%d samples that an earlier process of this worker left on disk do not fit those in "
            "the trainer's memory: %s; they stay on disk, for another trainer, and take room in "
            "the spool: remove %s to give them up",
            kept,
            reason,
            self._path / f"{incarnation:016x}-*",
        )

    def unacknowledged_samples(self) -> int:
        """Return the number of entries that are kept because the trainer has not stored them."""
        with self._busy:
            return sum(sender.kept for sender in self._senders.values())

    def pending(self) -> bool:
        """Whether any entry is not yet in the trainer's memory and may still get there."""
        with self._busy:
            return any(sender.is_pending for sender in self._senders.values())

    def close(self) -> None:
        """Stop sending, and leave the remaining entries to the next process. Calling it twice is
        fine.

        A private folder is removed if the process that drives the environment has left it as well.
        """
        with self._busy:
            if not self._senders:
                return
            is_orphan = not has_writer(self._path)
            missing = sum(sender.missing for sender in self._senders.values())
            if is_orphan and missing:
                log.warning(
                    "%d entries of worker %s have not reached the trainer: %s",
                    missing,
                    self.worker,
                    "they are lost" if is_private(self._path) else "its next process sends them",
                )
            for sender in self._senders.values():
                source = sender.source
                source.close(remove=is_orphan and source.ends_at(source.stored))
            self._senders.clear()
            self._lock.release()
            leave(self._path)
