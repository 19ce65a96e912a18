"""Many light workers in one process, without environments; samples are numbered as by
`NumberedEnv`.
"""

import itertools
import random
import threading
import time
from contextlib import ExitStack

import numpy as np
from kit.light_worker import LightWorker
from numbered_samples import NUMBERED_SPACES

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.transport import KeyFolder, connect
from tmrl_like.wire.spaces import describe_spaces

_LOG_BYTES = 1 << 20


class LightFleet:
    """Workers that each make ten samples per second until `stop`, and send each one at once, in its
    own packet, to one of the servers. Use it as a context manager.
    """

    def __init__(self, workers, ports, keys, ballast_bytes):
        spaces, options = describe_spaces(*NUMBERED_SPACES), OutboxOptions(max_samples=1)
        self.workers = []
        for number in range(workers):
            link = connect("zmq", "127.0.0.1", ports[number % len(ports)], KeyFolder(keys))
            folder = open_folder(None, f"w{number}")
            self.workers.append(LightWorker(folder, link, options, _LOG_BYTES, spaces))
        self._ballast_bytes = ballast_bytes
        self._pause_s = 1 / (10.0 * workers)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self):
        """Append a sample of one worker after the other; observations are (worker, 1, number)."""
        due = time.monotonic()
        for number, worker in itertools.cycle(enumerate(self.workers)):
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                return
            due += self._pause_s
            obs = np.array([number, 1, worker.made], np.float32)
            info = {"ballast": random.randbytes(self._ballast_bytes)} if self._ballast_bytes else {}
            sample = np.zeros(1, np.float32), obs, 0.0, False, False, info
            worker.append(sample, time.time())

    def produced(self):
        """Return how many samples were produced, in the form of `numbered_samples.produced`."""
        return {(number, 1): worker.made for number, worker in enumerate(self.workers)}

    def marks(self):
        """Return how many samples each worker has made."""
        return [worker.made for worker in self.workers]

    def is_stored(self, marks):
        """Whether each worker has more samples stored than its mark."""
        return all(worker.stored > mark for worker, mark in zip(self.workers, marks, strict=True))

    def stop(self):
        """Stop making samples; those already made still arrive."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.stop()
        with ExitStack() as stack:
            for worker in self.workers:
                stack.callback(worker.close, 0.0)
