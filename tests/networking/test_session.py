"""A peer's side of the conversation, over a link that the test holds in its hand."""

import time

from tmrl_like.networking.session import Session
from tmrl_like.wire import messages as m


class Link:
    """Takes nothing until `open`; `sent` is what it took, with the time."""

    def __init__(self) -> None:
        self.open = False
        self.sent: list[tuple[float, object]] = []

    def send(self, data):
        if self.open:
            self.sent.append((time.monotonic(), m.decode(data)[0]))
        return self.open

    def receive(self, timeout_s):
        time.sleep(min(timeout_s, 0.01))

    def wake(self):
        pass

    def close(self):
        pass


class Idle:
    def on_welcome(self, welcome, is_new):
        pass

    def on_message(self, message, body):
        pass

    def on_tick(self, send, connected):
        return 0.01

    def pending(self):
        return False

    def beat(self):
        return m.Beat()


def test_a_hello_that_found_no_connection_is_said_as_soon_as_there_is_one(until):
    link = Link()
    session = Session(link, "nowhere", Idle(), "worker", "w")
    time.sleep(0.3)
    link.open, opened = True, time.monotonic()
    until(lambda: link.sent)
    session.close()
    said_at, hello = link.sent[0]
    assert isinstance(hello, m.Hello)
    assert said_at - opened < 0.3
