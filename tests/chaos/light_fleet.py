"""Many workers in one process: real samples, outboxes and sessions; no environment, but numbers as of `NumberedEnv`."""

import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numbered_samples import NUMBERED_SPACES

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.session.ring import connect_to_one
from tmrl_like.session.session import Session
from tmrl_like.transport import KeyFolder, addresses_of
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.spaces import describe_spaces

_TICK_S = 0.05
_LOG_BYTES = 1 << 20


class LightWorker:
    """One of them; implements `session.Role`. A sample is a packet, and leaves at once.

    Attributes:
        made: how many samples.
        received, stored: the entry up to which the trainer, or the engine, has confirmed them.
    """

    def __init__(self, number: int, ports: list[int], keys: Path, ballast_bytes: int) -> None:
        self.number, self.made, self.received, self.stored = number, 0, 0, 0
        self._ballast_bytes = ballast_bytes
        self._feed = 0
        name = f"w{number}"
        self._folder = open_folder(None, name)
        self._log = SampleLog(self._folder, max_bytes=_LOG_BYTES)
        self._outbox = Outbox(self._folder.path, name, [self._log.incarnation], OutboxOptions(max_samples=1))
        addresses = addresses_of([f"127.0.0.1:{port}" for port in ports], 0)
        ring = connect_to_one("zmq", addresses, name, KeyFolder(keys))
        spaces = describe_spaces(*NUMBERED_SPACES)
        self.session = Session(ring, self, "worker", name, spaces=spaces, incarnation=self._log.incarnation)

    def append(self) -> None:
        """Make a sample; its observation is (worker, 1, number)."""
        obs = np.array([self.number, 1, self.made], np.float32)
        info = {"ballast": random.randbytes(self._ballast_bytes)} if self._ballast_bytes else {}
        sample = np.zeros(1, np.float32), obs, 0.0, False, False, info
        self._log.append(sample, *StepTiming(time.time(), 0.0, 0.0, 0))
        self.made += 1

    def end(self, flush_s: float = 0.0) -> None:
        """Leave; what is not stored by then goes with this worker."""
        self.session.close(flush_s)
        self._log.close()
        self._folder.close()
        self._outbox.close()

    def on_welcome(self, welcome: m.Welcome, is_new: bool) -> None:
        if welcome.feed != self._feed or is_new:
            self._outbox.send_again(to_another_trainer=welcome.feed != self._feed)
        self._feed = welcome.feed

    def on_message(self, message: m.AnyMessage, body: memoryview, data: bytes | memoryview) -> None:
        if isinstance(message, m.Ack):
            self._outbox.on_ack(message)
            self.received, self.stored = max(self.received, message.received), max(self.stored, message.stored)

    def on_tick(self, send, connected: bool) -> float:
        self._log.refill()
        self._outbox.pump(send, connected and self._feed != 0)
        return _TICK_S

    def pending(self) -> bool:
        return False

    def beat(self) -> m.Beat:
        return m.Beat(f"w{self.number}", Condition(unacknowledged_samples=self._outbox.unacknowledged_samples()))


class LightFleet:
    """Workers that make samples until `stop`, each `hz` a second. Use it as a context manager."""

    def __init__(self, workers: int, ports: list[int], keys: Path, hz: float = 10.0, ballast_bytes: int = 0) -> None:
        self.workers = [LightWorker(number, ports, keys, ballast_bytes) for number in range(workers)]
        self._pause_s = 1 / (hz * workers)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self) -> None:
        due, turn = time.monotonic(), 0
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due += self._pause_s
            self.workers[turn % len(self.workers)].append()
            turn += 1

    def produced(self) -> dict[tuple[int, int], int]:
        """As `numbered_samples.produced`."""
        return {(worker.number, 1): worker.made for worker in self.workers}

    def marks(self) -> list[int]:
        """How many samples each has made."""
        return [worker.made for worker in self.workers]

    def is_stored(self, marks: list[int]) -> bool:
        """Whether more than these are stored, of each."""
        return all(worker.stored > mark for worker, mark in zip(self.workers, marks, strict=True))

    def stop(self) -> None:
        """Make no more samples; those that are made still arrive."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> "LightFleet":
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        with ExitStack() as stack:
            for worker in self.workers:
                stack.callback(worker.end)
