"""A session's connection to the server, with its other end in the test."""

import threading

from tmrl_like.wire import messages as m


class DeadLink:
    """A link that accepts every message and on which none arrives, so that `receive` waits."""

    where, is_lost, logs_itself = "nowhere", False, False

    def __init__(self):
        self._woken = threading.Event()

    def send(self, data):
        return True

    def receive(self, timeout_s):
        self._woken.wait(timeout_s)
        self._woken.clear()

    def wake(self):
        self._woken.set()

    def close(self):
        pass


class IdleRole:
    """A role that only sends heartbeats."""

    def on_welcome(self, welcome, is_new):
        pass

    def on_message(self, message, body, data):
        pass

    def on_tick(self, send, connected):
        return 0.01

    def pending(self):
        return False

    def beat(self):
        return m.Beat()
