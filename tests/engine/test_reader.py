"""From the stream to the trainer's memory, through real nodes."""

import asyncio
import concurrent.futures
import contextlib
import time

import msgspec
import nats.errors
import pytest
from engine_nodes import Nodes
from engine_trainer import trainer_link
from kit.packets import numbered, packet_of
from kit.waiting import until

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.engine.reader import Reader
from tmrl_like.engine.subjects import (
    BUCKET,
    GatewayState,
    acks_subject,
    gateway_subject,
    policy_subject,
    samples_subject,
    stream_name,
    token,
)
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m

PATIENCE_S = 30.0
RUN = "r 1"


def packet(worker, entry, oldest=1):
    """A packet with one sample."""
    return packet_of(entry, numbered(entry), worker=worker, oldest=oldest)


class Site:
    """What a gateway is to an engine, without its workers."""

    def __init__(self, name, options):
        self.name = name
        self.stored = {}  # as the trainer says
        self._client = None
        self._closing, self._tasks = asyncio.Event(), []
        self._connection = EngineConnection(options, self._attend)

    async def _attend(self, client):
        await hear(client, acks_subject(RUN, self.name), self._on_ack)
        self._client = client
        state = msgspec.msgpack.encode(GatewayState())
        while not self._closing.is_set():
            await client.publish(gateway_subject(RUN, self.name), state)
            await asyncio.sleep(0.2)

    def publish(self, *packets, worker="w1"):
        """Have the stream keep them; each is tried until it is there."""
        until = time.monotonic() + PATIENCE_S
        for data in packets:
            while True:
                self._connection.check()
                subject = samples_subject(RUN, self.name, worker)
                with contextlib.suppress(AttributeError, TimeoutError, nats.errors.Error):  # not there
                    self.do(self._client.jetstream(timeout=1.0).publish, subject, data)
                    break
                assert time.monotonic() < until
                time.sleep(0.05)

    def say(self, data, worker="w1"):
        """Send a packet, whether a stream keeps it or not."""
        until(lambda: self._client is not None)
        self.do(self._client.publish, samples_subject(RUN, self.name, worker), data)

    def do(self, work, *args):
        """Have it done in the connection's loop."""
        done = concurrent.futures.Future()

        async def to_the_end():
            try:
                done.set_result(await work(*args))
            except Exception as error:
                done.set_exception(error)

        self._connection.call(lambda: self._tasks.append(asyncio.ensure_future(to_the_end())))
        return done.result(5.0)

    def acked(self, process, sequence):
        """Wait for the acknowledgement of it."""
        until(lambda: self.stored.get(process, 0) >= sequence)

    def _on_ack(self, message):
        ack, _ = m.decode(message.data)
        process = (ack.worker, ack.incarnation)
        self.stored[process] = max(ack.stored, self.stored.get(process, 0))

    def close(self):
        self._connection.call(self._closing.set)
        self._connection.close(0.1)


class Rig:
    """Sites and trainers at some nodes."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.parts = []

    def site(self):
        return self._keep(Site("arena", self.nodes.options(RUN, "arena")))

    def trainer(self, receiver=None, name="t", rank=m.ALONE, **options):
        link = Reader(self.nodes.options(RUN, "gpu", **options))
        return self._keep(trainer_link(link, receiver or Receiver(), name, rank))

    def _keep(self, part):
        self.parts.append(part)
        return part


@pytest.fixture
def rig(node):
    rig = Rig(node)
    yield rig
    for part in rig.parts:
        part.close()


def taken(trainer, count, confirm=True):
    """The receipts of what comes until so many packets are there."""
    receipts, until = [], time.monotonic() + PATIENCE_S
    while len(receipts) < count:
        assert time.monotonic() < until, receipts
        deliveries = trainer.retrieve(0.2)
        receipts += [s for d in deliveries for s in sequences(d)]
        if confirm:
            trainer.confirm(deliveries)
    return receipts


def sequences(delivery):
    worker, _, last = delivery.receipt
    return [(worker, n) for n in range(last - len(delivery.buffer) + 1, last + 1)]


def of(worker, *numbers):
    return [(worker, n) for n in numbers]


def left_in_stream(nodes):
    stream = nodes.streams().get(stream_name(RUN))
    return stream and stream["state"]["messages"]


def test_what_a_trainer_had_not_stored_comes_to_its_successor_and_the_rest_does_not(rig):
    site, first = rig.site(), rig.trainer()
    site.publish(*(packet("w1", n) for n in range(1, 11)))
    taken(first, 10)
    site.acked(("w1", 7), 10)
    site.publish(*(packet("w1", n) for n in range(11, 21)))
    taken(first, 10, confirm=False)
    first._receiver.confirm([Receipt("w1", 7, 15)])
    site.acked(("w1", 7), 15)
    first.session._ring.close()  # gone, and the rest is not stored
    receiver = Receiver()
    receiver.note_stored([Receipt("w1", 7, 15)])
    assert taken(rig.trainer(receiver, "second"), 5) == of("w1", 16, 17, 18, 19, 20)
    site.acked(("w1", 7), 20)
    until(lambda: left_in_stream(rig.nodes) == 0)


def test_a_trainer_that_no_server_gives_samples_to_says_what_to_do(rig, caplog, monkeypatch):
    monkeypatch.setattr("tmrl_like.engine.reader._LONELY_AFTER_S", 0.2)
    rig.trainer()
    until(lambda: "no server gives this engine samples of the run" in caplog.text)


def test_an_engine_that_is_away_is_not_called_a_server(rig, caplog, monkeypatch):
    caplog.set_level("INFO")
    for name in ("session.conversation._COMPLAIN_AFTER_S",):
        monkeypatch.setattr(f"tmrl_like.{name}", 0.2)
    monkeypatch.setattr("tmrl_like.session.conversation._PATIENCE_S", 2.0)
    trainer = rig.trainer()
    assert trainer.session.wait_connected(PATIENCE_S)
    rig.nodes.kill(0)
    until(lambda: not trainer.session.connected and "no connection to the engine" in caplog.text)
    time.sleep(0.5)
    assert "trainer of the run as t" in caplog.text
    assert "server" not in caplog.text


def test_each_rank_takes_its_parts_once_its_group_has_the_seat(rig):
    site, parts = rig.site(), {worker: m.share_of(worker, 2) for worker in ("w1", "w2", "w3", "w4")}
    assert sorted(parts.values()) == [0, 0, 1, 1]
    other = rig.trainer(name="other")
    assert other.session.wait_connected(PATIENCE_S)
    second = rig.trainer(name="b", rank=m.Rank(1, 2, 5))
    assert not second.session.wait_connected(1.0)
    other.close()
    ranks = [rig.trainer(name="a", rank=m.Rank(0, 2, 5)), second]
    for worker in parts:
        site.publish(packet(worker, 1), packet(worker, 2), worker=worker)
    for number, rank in enumerate(ranks):
        expected = [(w, n) for w, part in parts.items() if part == number for n in (1, 2)]
        assert sorted(taken(rank, 4)) == sorted(expected)
    for worker in parts:
        site.acked((worker, 7), 2)
    until(lambda: left_in_stream(rig.nodes) == 0)


def test_a_site_cannot_unseat_a_trainer_or_stop_it_with_what_it_has_the_broker_write(rig):
    site, trainer = rig.site(), rig.trainer()
    until(lambda: left_in_stream(rig.nodes) == 0)
    for forged in (f"$KV.{BUCKET}.{token(RUN)}", samples_subject(RUN, "lab", "w1"), policy_subject(RUN)):
        site.do(site._client.publish, samples_subject(RUN, "arena", "w1"), b"no packet", forged)
    site.publish(packet("w9", 1))  # as w1
    time.sleep(2.5)  # two looks at the seat
    site.publish(packet("w1", 1))
    assert taken(trainer, 1) == of("w1", 1)
    assert trainer.session.connected
    until(lambda: left_in_stream(rig.nodes) == 0)


def test_a_run_gets_a_stream_that_is_kept_on_disk_and_refuses_when_it_is_full(rig):
    trainer = rig.trainer(max_bytes=1 << 20)
    assert trainer.session.wait_connected(PATIENCE_S)
    config = until(lambda: rig.nodes.streams().get(stream_name(RUN)))["config"]
    kept = {name: config[name] for name in ("retention", "discard", "storage", "num_replicas", "max_bytes")}
    assert kept == {
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "num_replicas": 1,
        "max_bytes": 1 << 20,
    }


def test_a_stream_that_is_other_than_wanted_is_used_and_a_line_names_what_differs(rig, caplog):
    first = rig.trainer(max_bytes=1 << 20)
    until(lambda: left_in_stream(rig.nodes) == 0)
    first.close()
    rig.trainer(max_bytes=2 << 20)
    until(lambda: "is used as it is: max_bytes is 1048576, expected 2097152" in caplog.text)


def test_what_the_stream_does_not_keep_is_heard_on_its_way(rig, monkeypatch):
    monkeypatch.setattr("tmrl_like.engine.reader.all_samples", lambda run: "elsewhere")
    trainer, site = rig.trainer(), rig.site()
    assert trainer.session.wait_connected(PATIENCE_S)
    until(lambda: site.say(packet("w1", 1)) or trainer.retrieve(0.1))


def test_nodes_without_jetstream_are_said_to_be(tmp_path, caplog):
    with Nodes(tmp_path, jetstream=False) as nodes:
        trainer = Rig(nodes).trainer()
        until(lambda: "the trainer's seat is away" in caplog.text)
        trainer.close()
    assert "nothing answers for JetStream: enable it at the nodes, and for this user's account" in caplog.text
