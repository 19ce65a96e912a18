"""A pass over a stream: with a real node, and with messages that a node would skip."""

import asyncio
from types import SimpleNamespace

import nats
import pytest
from engine_nodes import Nodes
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import StreamConfig

from tmrl_like.engine.stream_pass import StreamPass

COUNT = 500


async def read_all(url):
    """Fill a stream, and read it; return what was taken, and with how many pulls."""
    client = await nats.connect(url)
    stream = client.jetstream(timeout=60.0)
    await stream.add_stream(StreamConfig("s", subjects=["x.>"]))
    await stream.publish("x.a", b"0", headers={"Status": "408"})  # a site may send any header
    for number in range(1, COUNT - 1):
        await client.publish("x.a", b"%d" % number)
    await stream.publish("x.a", b"%d" % (COUNT - 1))  # returns once all are stored
    taken, pulls = [], 0
    reading = StreamPass(client, stream, "s", lambda message: taken.append(int(message.data)))
    await reading.open("x.>")
    while len(taken) < COUNT:
        await reading.pull()
        pulls += 1
    assert not reading.is_broken
    assert not await reading.has_missed_some()
    await reading.close()
    await client.close()
    return taken, pulls


@pytest.mark.parametrize(
    ("limits", "most_pulls"),
    [("", COUNT / 50), ("limits: { max_request_batch: 100 }", COUNT / 20)],
    ids=["as many as they like", "a hundred at a time"],
)
def test_few_requests_bring_a_long_backlog_in_order(tmp_path, limits, most_pulls):
    with Nodes(tmp_path / "engine", is_open=True, jetstream=limits) as nodes:
        taken, pulls = asyncio.run(read_all(nodes.urls[0]))
    assert taken == list(range(COUNT))
    assert pulls < most_pulls


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
        await self.bring(next(self._answers))
        await self.end(reply)

    async def bring(self, numbers):
        for number in numbers:
            place = f"$JS.ACK.s.c.1.{number + 10}.{number}.0.5"
            await self._deliver(Msg(self, "x.a", place, b"%d" % number, {}))

    async def end(self, reply, status="408", why="Request Timeout"):
        await self._deliver(Msg(self, reply, "", b"", {"Status": status, "Description": why}))

    async def add_consumer(self, stream, config):
        return SimpleNamespace(name="c")

    async def consumer_info(self, stream, consumer):
        return SimpleNamespace(delivered=SimpleNamespace(consumer_seq=4))


async def opened(client, take=print):
    """Return a pass over the stream of a `ScriptedClient`."""
    reading = StreamPass(client, client, "s", take)
    await reading.open("x.>")
    return reading


@pytest.mark.parametrize(
    ("answers", "taken", "is_broken"),
    [
        pytest.param([[1], [3, 4], []], [1], True, id="one skipped"),
        pytest.param([[1, 2, 3], [], []], [1, 2, 3], False, id="the last one missing"),
    ],
)
def test_what_follows_a_skipped_message_is_not_taken(answers, taken, is_broken):
    client, found = ScriptedClient(*answers), []

    async def read():
        reading = await opened(client, lambda message: found.append(int(message.data)))
        pulls = [await reading.pull() for _ in answers]
        assert pulls[-1] is False
        assert reading.is_broken == is_broken
        assert await reading.has_missed_some()

    asyncio.run(read())
    assert found == taken


def test_the_late_end_of_a_request_does_not_end_the_next_one():
    requests = []

    class Late(ScriptedClient):
        async def publish(self, subject, data, reply):
            requests.append(reply)
            if len(requests) == 2:
                await self.end(requests[0])
                self.answering = asyncio.gather(self.bring([1]), self.end(reply))

    async def read():
        reading = await opened(Late())
        assert await reading.pull() is False
        assert await reading.pull() is True

    asyncio.run(read())


def test_a_request_that_the_nodes_refuse_is_an_error():
    class Refusing(ScriptedClient):
        async def publish(self, subject, data, reply):
            await self.end(reply, "409", "Consumer Deleted")

    async def read():
        reading = await opened(Refusing())
        with pytest.raises(Error, match="Consumer Deleted"):
            await reading.pull()

    asyncio.run(read())
