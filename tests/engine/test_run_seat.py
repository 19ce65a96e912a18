"""The trainer's seat of a run at an engine: one trainer has it, its successor gets it at once, and
another run's trainer never does.
"""

import contextlib
import threading
import time
from dataclasses import replace

import pytest
from kit.waiting import until
from link_proxy import LinkProxy

from tmrl_like.engine.connection import EngineConnection
from tmrl_like.engine.options import address_of
from tmrl_like.engine.reader import Reader
from tmrl_like.engine.subjects import BUCKET, token
from tmrl_like.wire import messages as m


class Trainer:
    """A reader, with the messages that a session would send through it."""

    def __init__(self, options, name, **hello):
        self.reader = Reader(options, seat_s=0.1)
        self.answers = []
        self.hello = m.encode(m.Hello("trainer", name, hash(name) & 0xFFFF | 1, "", **hello))
        self.reader.send(self.hello)

    def heard(self):
        """Return all answers so far."""
        while (data := self.reader.receive(0.01)) is not None:
            message, _ = m.decode(data)
            if isinstance(message, m.Welcome | m.Refusal):
                self.answers.append(message)
        return self.answers

    def is_seated(self):
        return bool(self.heard()) and isinstance(self.answers[-1], m.Welcome)


@pytest.fixture
def trainer(node):
    with contextlib.ExitStack() as stack:

        def start(name, url=node.urls[0], **hello):
            options = replace(node.options("run", "gpu"), nodes=(url,))
            started = Trainer(options, name, **hello)
            stack.callback(started.reader.close)
            return started

        yield start


@pytest.fixture
def seated(trainer):
    """Return a function that starts a trainer and waits until it has the seat."""

    def start(*arguments, within_s=60.0, **hello):
        started = trainer(*arguments, **hello)
        until(started.is_seated, within_s=within_s)
        return started

    return start


def test_a_successor_of_the_same_run_takes_the_seat_at_once_and_its_predecessor_hears_so(seated):
    first = seated("first", run="training", began_up_s=10.0)
    second = seated("second", run="training", began_up_s=20.0, within_s=4.0)
    until(lambda: not first.is_seated())
    (refusal,) = [answer for answer in first.answers if isinstance(answer, m.Refusal)]
    assert refusal.reason == "another trainer (second) has taken this one's seat: stop one of them"
    assert refusal.retry_after_s < 0
    time.sleep(0.5)  # several looks: the first trainer does not take the seat back
    assert second.is_seated()
    assert len(second.answers) == 1


def test_the_seat_of_a_living_trainer_is_taken_by_nobody_else(trainer, seated):
    first = seated("first", run="training", samples=9, began_up_s=10.0)
    others = [
        trainer("of another run", run="another", began_up_s=20.0),
        trainer("of no run"),
        trainer("older", run="training", samples=9, began_up_s=5.0),
        trainer("with fewer samples", run="training", samples=5, began_up_s=20.0),
    ]
    for other in others:
        until(other.heard)
    time.sleep(0.5)  # several looks
    reason = "a trainer is connected already (first): stop it, or give this one another run_name"
    assert [other.heard() for other in others] == [[m.Refusal(reason, 1.0)]] * 4
    assert first.is_seated()
    assert len(first.answers) == 1


def test_the_seat_of_a_dead_trainer_is_free_after_a_moment(node, trainer, seated):
    with LinkProxy(*address_of(node.urls[0])) as link:
        seated("first", f"nats://localhost:{link.port}")
        second = trainer("second")
        until(second.heard)
        assert isinstance(second.answers[0], m.Refusal)

    def ask():
        second.reader.send(second.hello)
        return second.is_seated()

    until(ask)


def test_the_seat_of_a_trainer_that_ends_is_free_at_once(seated):
    seated("first").reader.close()
    assert len(seated("second", within_s=4.0).answers) == 1


@pytest.mark.parametrize("content", [b"garbage", m.encode(m.Beat())])
def test_a_seat_that_holds_no_hello_is_free(content, node, seated):
    seated("first").reader.close()
    written = threading.Event()

    async def write(client):
        await (await client.jetstream().key_value(BUCKET)).put(token("run"), content)
        written.set()

    EngineConnection(node.options("run", "gpu"), write).close(flush_s=10.0)
    assert written.is_set()
    seated("second", within_s=4.0)
