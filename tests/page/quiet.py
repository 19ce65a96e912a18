"""A connection on which nothing arrives, and whose owner waits for it."""

import threading

from house import DeadLink


class QuietLink(DeadLink):
    def __init__(self):
        self._woken = threading.Event()

    def receive(self, timeout_s):
        self._woken.wait(timeout_s)
        self._woken.clear()

    def wake(self):
        self._woken.set()
