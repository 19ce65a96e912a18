"""Takes the samples of a worker that has no connection, in place of a server and a trainer."""

from __future__ import annotations

import dataclasses
import threading
from typing import NamedTuple

from tmrl_like.base.threads import start_thread
from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.wire import messages as m
from tmrl_like.wire.records import unseal
from tmrl_like.worker.worker import RolloutWorker

_EVERY_S = 0.01


class Collected(NamedTuple):
    """A packet that was taken."""

    record: memoryview
    packet: m.SamplePacket
    body: memoryview


class Collector:
    """Collects the packets of a standalone worker, through sample log and outbox. Use it as a context manager."""

    def __init__(self, worker: RolloutWorker, options: OutboxOptions | None = None) -> None:
        """Take what the worker collects from now on; `options` say when a packet leaves."""
        endless = {"max_bytes": 1 << 50, "max_held_samples": 1 << 50, "window_bytes": 1 << 50}
        options = dataclasses.replace(options or OutboxOptions(), **endless)
        self._loop = worker.loop
        self._folder = open_folder(None, worker.name)
        self._samples = worker.loop.samples = SampleLog(self._folder, worker.loop.crc_debug)
        self._outbox = Outbox(self._folder.path, worker.name, self._samples.incarnation, options)
        self._taken: list[Collected] = []
        self._busy = threading.Lock()
        self._closing = threading.Event()
        self._thread = start_thread(self._run, "tmrl-collector")

    def take(self) -> list[Collected]:
        """What was collected since the last call; between episodes."""
        self._samples.seal()
        while self._outbox.pending():
            self._pump()
        with self._busy:
            taken, self._taken = self._taken, []
        return taken

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            self._samples.refill()
            self._pump()

    def _pump(self) -> None:
        with self._busy:
            before = len(self._taken)
            self._outbox.pump(self._send, may_send=True)
            if len(self._taken) > before:
                name = self._taken[-1].packet
                self._outbox.on_ack(m.Ack(name.worker, name.incarnation, name.sequence, name.sequence))

    def _send(self, bundle: bytes) -> bool:
        for record, message in unseal(m.decode(bundle)[1]):
            packet, body = m.decode(message)
            assert isinstance(packet, m.SamplePacket)
            self._taken.append(Collected(record, packet, body))
        return True

    def close(self) -> None:
        """Take nothing more. Twice is fine."""
        self._loop.samples = None
        self._closing.set()
        self._thread.join()
        self._samples.close()
        self._folder.close()
        self._outbox.close()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
