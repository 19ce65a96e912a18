"""A worker's samples, from the files that the control loop fills (`sample_log`) to the trainer.

Everything is bounded: beyond the limits the oldest packet is dropped, and its samples are counted in `lost_samples`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tmrl_like.delivery.folder import has_writer, is_private, leave, lock_for_reading
from tmrl_like.delivery.log import PacketLog
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.reader import SampleReader
from tmrl_like.delivery.sender import Sender
from tmrl_like.wire import messages as m

_LOG_SEGMENT_BYTES = 4 << 20


class Outbox:
    """Seals what the control loop of a worker appends, keeps it until it is stored, and sends it.

    Seal and log survive a kill of this process at any point: the next outbox of the same incarnation goes on. What
    processes left that are dead is sent as what it is, packets of those processes.
    """

    def __init__(
        self,
        path: Path,
        worker: str,
        incarnation: int,
        options: OutboxOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
        epoch_s: float = 0.0,
    ) -> None:
        """Lock the packets in the worker's folder, and take over what is there; `incarnation` is the `SampleLog`'s.

        `epoch_s` is that of the process which fills it, see `Bundle`.

        Raises:
            ConfigError: another process still sends what is in the folder.
        """
        self._clock = clock
        self._path = path
        self.worker = worker
        self.incarnation = incarnation
        self.options = options = options or OutboxOptions()
        self._shall_seal = self._is_closed = False
        self._busy = threading.Lock()  # `close` may meet a connection's thread that did not end
        with contextlib.ExitStack() as undo:
            max_bytes = options.max_bytes if is_private(path) else options.spool_max_bytes
            self._log = PacketLog(path, lock_for_reading(path), max(1, min(_LOG_SEGMENT_BYTES, max_bytes // 4)))
            undo.callback(self._log.close)
            self._sender = Sender(worker, incarnation, options, self._log, clock(), epoch_s)
            self._reader = SampleReader(path, (worker, incarnation), options, self._keep, self._sender.newest)
            if self._reader.begin():
                self._sender.lost_samples += self._reader.dropped_samples
            undo.pop_all()

    @property
    def takes_over(self) -> tuple[int, ...]:
        """Incarnations that are dead, whose packets this process sends as well."""
        return self._sender.predecessors

    @property
    def alarm(self) -> str:
        """What the worker's user should know; empty: all is well."""
        return self._log.alarm

    @property
    def lost_samples(self) -> int:
        """Samples that were dropped before the trainer had them."""
        return self._sender.lost_before + self._sender.lost_samples

    def pump(self, send: Callable[[bytes], bool], may_send: bool, awaits: bool = False) -> None:
        """Seal what shall leave; send as much as the window and the connection take; `awaits`: see `Bundle`."""
        with self._busy:
            if self._is_closed:
                return
            self._shall_seal |= awaits
            self._read()
            if may_send:
                self._sender.send(send, self._clock(), awaits)

    def _read(self) -> None:
        now = self._clock()
        self._reader.read(now, self._shall_seal)
        self._shall_seal = False
        self._sender.write(now)
        self._sender.lost_before = self._reader.lost_samples
        self._reader.note_dropped(self._sender.lost_samples)

    def _keep(self, sequence: int, samples: int, record: tuple[bytes, ...]) -> None:
        self._sender.add(sequence, samples, record, self._clock())

    def seal(self) -> None:
        """Have everything that is there leave with the next `pump`: nothing follows, say."""
        self._shall_seal = True

    def on_ack(self, ack: m.Ack) -> None:
        """Forget what is stored; send again what is missing."""
        with self._busy:
            if not self._is_closed:
                self._sender.on_ack(ack, self._clock())

    def samples_up_to(self, sequence: int) -> int:
        """See `SampleReader.samples_up_to`."""
        return self._reader.samples_up_to(sequence)

    @property
    def forgotten(self) -> int:
        """Up to this one no packet of this process is kept: whoever trains next will not hear of them."""
        return self._sender.oldest - 1 if self._sender.oldest else self._reader.sequence

    def retransmit(self, from_the_start: bool) -> None:
        """See `Sender.retransmit`."""
        self._sender.retransmit(from_the_start)

    def set_aside(self, incarnation: int, reason: str) -> None:
        """See `Sender.set_aside`."""
        self._sender.set_aside(incarnation, reason)

    def unacknowledged_samples(self) -> int:
        """Samples in packets that are kept because the trainer has not stored them."""
        return self._sender.samples

    def pending(self) -> bool:
        """Whether anything that was read, or asked to leave, is not yet in the trainer's memory."""
        return not self._is_closed and (self._shall_seal or self._reader.has_unread or self._sender.pending)

    def close(self) -> None:
        """Seal what is there, and leave it to the next process. Twice is fine.

        A private folder goes when the process that drives the environment has left it, too.
        """
        with self._busy:
            if not self._is_closed:
                self._is_closed = True
                self._shall_seal = not has_writer(self._path)
                self._read()
                self._reader.close(remove=not has_writer(self._path) and self._sender.is_all_in_log)
                self._log.close()
                leave(self._path)
