"""A connection on which nothing arrives, so that `receive` waits."""

import threading

from kit.links import DeadLink


class QuietLink(DeadLink):
    def __init__(self):
        self._woken = threading.Event()

    def receive(self, timeout_s):
        self._woken.wait(timeout_s)
        self._woken.clear()

    def wake(self):
        self._woken.set()
