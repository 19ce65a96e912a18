"""A pass over a stream: with a real node, and with messages that a node would skip."""

import asyncio
import contextlib
from types import SimpleNamespace

import pytest
from kit.waiting import until
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from tmrl_like.engine.connection import EngineConnection
from tmrl_like.engine.stream_pass import StreamPass

COUNT = 500
ALL = {"pub": [">"], "sub": [">"]}


def test_few_requests_bring_a_long_backlog_in_order(node):
    results = []

    async def read(client):
        stream = client.jetstream(timeout=5.0)
        await stream.add_stream(StreamConfig("s", subjects=["x.>"]))
        for number in range(COUNT - 1):
            await client.publish("x.a", b"%d" % number)
        await stream.publish("x.a", b"%d" % (COUNT - 1))  # returns once all are stored
        taken = []
        reading = StreamPass(client, stream, "s", lambda message: taken.append(int(message.data)))
        await reading.open("x.>")
        pulls = 0
        while len(taken) < COUNT:
            await reading.pull()
            pulls += 1
        results.append((taken, pulls, reading.is_broken, await reading.has_missed_some()))
        await reading.close()

    user = node.user("reader", ALL)
    with contextlib.closing(EngineConnection(node.options("r", user), read)) as connection:
        until(lambda: results or connection.check(), "the stream is read")
    taken, pulls, *faults = results[0]
    assert taken == list(range(COUNT))
    assert pulls < COUNT / 50
    assert faults == [False, False]


class ScriptedClient:
    """Answers each request with the messages of these numbers of the consumer, then ends it."""

    max_payload = 1 << 20

    def __init__(self, *answers):
        self._answers = iter(answers)

    def new_inbox(self):
        return "inbox"

    async def subscribe(self, subject, cb, **limits):
        self._deliver = cb

    async def publish(self, subject, data, reply):
        for number in next(self._answers):
            place = f"$JS.ACK.s.c.1.{number + 10}.{number}.0.5"
            await self._deliver(Msg(self, "x.a", place, b"%d" % number, {}))
        await self._deliver(Msg(self, reply, "", b"", {"Status": "408"}))

    async def add_consumer(self, stream, config):
        return SimpleNamespace(name="c")

    async def consumer_info(self, stream, consumer):
        return SimpleNamespace(delivered=SimpleNamespace(consumer_seq=4))


@pytest.mark.parametrize(
    ("answers", "taken", "is_broken", "has_missed_some"),
    [
        pytest.param([[1, 2], [3, 4], []], [1, 2, 3, 4], False, False, id="complete"),
        pytest.param([[1], [3, 4], []], [1], True, True, id="one skipped"),
        pytest.param([[1, 2, 3], [], []], [1, 2, 3], False, True, id="the last one missing"),
    ],
)
def test_what_follows_a_skipped_message_is_not_taken(answers, taken, is_broken, has_missed_some):
    client, found = ScriptedClient(*answers), []

    async def read():
        reading = StreamPass(client, client, "s", lambda message: found.append(int(message.data)))
        await reading.open("x.>")
        pulls = [await reading.pull() for _ in answers]
        assert pulls[-1] is False
        assert reading.is_broken == is_broken
        assert await reading.has_missed_some() == has_missed_some

    asyncio.run(read())
    assert found == taken
