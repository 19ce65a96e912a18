"""Samples go from the stream to the trainer's memory, with real nodes."""

import asyncio
import time
from dataclasses import replace

from engine_rig import RUN, deliver
from kit.packets import numbered, packet_of
from kit.waiting import until
from nats.errors import OutboundBufferLimitError
from nats.js import JetStreamContext

from tmrl_like.engine.client import NodeClient
from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.engine.reader import Reader
from tmrl_like.engine.subjects import (
    ANSWERS,
    BEATS,
    BUCKET,
    POLICIES,
    SAMPLES,
    stream_name,
    subject_of,
    token,
)
from tmrl_like.wire import messages as m


def test_a_trainer_that_no_server_gives_samples_to_says_what_to_do(rig, caplog):
    rig.trainer(reads={"lonely_after_s": 0.2})
    until(lambda: "no server sends samples of the run to this engine" in caplog.text)


def test_a_site_cannot_unseat_a_trainer_or_stop_it_with_what_it_has_the_broker_write(
    rig,
):
    own = subject_of(RUN, SAMPLES, "arena", "w1")

    async def forge(client):
        for forged in (
            f"$KV.{BUCKET}.{token(RUN)}",
            subject_of(RUN, SAMPLES, "lab", "w1"),
            subject_of(RUN, POLICIES),
        ):
            await client.publish(own, b"no packet", forged)
        await client.publish(own, packet_of(1, numbered(1), worker="w9"))

    trainer = rig.trainer(reads={"seat_s": 0.1})
    rig.stream()
    EngineConnection(rig.arena, forge).close()
    time.sleep(0.5)  # enough for several looks at the seat
    deliver(rig.worker(rig.server()), 1)
    assert trainer.memory == {"w1": [1]}
    assert trainer.connected
    until(lambda: rig.in_stream() == 0)


def test_a_site_that_speaks_in_the_name_of_anothers_worker_hears_none_of_its_answers(rig):
    heard, spoken = [], asyncio.Event()

    async def speak(client):
        await hear(client, subject_of(RUN, ANSWERS, "lab"), heard.append)
        while True:
            await client.publish(subject_of(RUN, BEATS, "lab", "w1"), m.encode(m.Beat("w1")))
            await client.flush()
            spoken.set()
            await asyncio.sleep(0.01)

    _, worker = rig.both()
    deliver(worker, 1)
    rig.keep(EngineConnection(rig.nodes.options(RUN, "lab"), speak))
    until(spoken.is_set)
    for _ in range(5):
        deliver(worker, 1)
    assert not heard


def test_a_runs_stream_is_kept_on_disk_and_refuses_when_full_and_another_one_is_used_as_it_is(
    rig, caplog
):
    first = rig.trainer(max_bytes=1 << 20)
    wanted = {"discard": "new", "storage": "file", "num_replicas": 1, "max_bytes": 1 << 20}
    assert rig.stream()["config"].items() >= wanted.items()
    first.close()
    rig.trainer(max_bytes=2 << 20)
    until(lambda: "is used as it is: max_bytes is 1048576, expected 2097152" in caplog.text)


def test_what_the_stream_does_not_keep_is_heard_on_its_way(rig, monkeypatch):
    add = JetStreamContext.add_stream

    async def add_elsewhere(stream, config, **how):
        if config.name == stream_name(RUN):
            config = replace(config, subjects=["elsewhere"])
        return await add(stream, config, **how)

    monkeypatch.setattr(JetStreamContext, "add_stream", add_elsewhere)
    trainer, worker = rig.both()
    until(lambda: trainer.connected)
    deliver(worker, 1)
    assert trainer.memory == {"w1": [1]}


def test_what_is_heard_is_dropped_while_much_waits_for_the_trainer(rig, monkeypatch, caplog):
    packet, limit = packet_of(1, numbered(1), worker="w1"), 10_000
    monkeypatch.setattr("tmrl_like.engine.reader.MAX_WAITING_BYTES", limit)
    reader = rig.keep(Reader(rig.nodes.options(RUN, "gpu")))
    reader.send(m.encode(m.Hello("trainer", "t", 1, "x")))
    assert until(lambda: reader.receive(0.1))

    async def flood(client):
        while True:
            await client.publish(subject_of(RUN, BEATS, "arena", "w1"), packet)
            await asyncio.sleep(0.001)

    site = rig.keep(EngineConnection(rig.arena, flood))
    until(lambda: "what comes beside the stream is dropped" in caplog.text)
    site.close(0.0)
    time.sleep(0.3)  # what it has said arrives
    waiting = list(iter(lambda: reader.receive(0.1), None))
    assert sum(map(len, waiting)) >= limit  # with the reader's own signs of life
    assert waiting.count(packet) * len(packet) < limit + len(packet)
    rig.keep(EngineConnection(rig.arena, flood))
    until(lambda: reader.receive(0.1) == packet)


def test_what_is_stored_is_purged_although_a_purge_has_failed(rig, monkeypatch):
    purge, failures = JetStreamContext.purge_stream, iter([TimeoutError])

    async def purge_later(*arguments, **how):
        for failure in failures:
            raise failure
        return await purge(*arguments, **how)

    monkeypatch.setattr(JetStreamContext, "purge_stream", purge_later)
    _, worker = rig.both()
    deliver(worker, 1)
    until(lambda: rig.in_stream() == 0, within_s=20.0)
    assert next(failures, None) is None


def test_a_trainer_that_goes_on_with_another_client_while_nothing_comes_reads_on(
    rig, monkeypatch, caplog
):
    heard, said, errors = [], [], []

    class Failing(NodeClient):
        async def subscribe(self, subject, **how):
            subscription = await super().subscribe(subject, **how)
            heard.append(subject)
            return subscription

        async def publish(self, subject, *arguments, **how):
            if errors and subject == subject_of(RUN, POLICIES):
                raise errors.pop()
            said.append(subject)
            await super().publish(subject, *arguments, **how)

    monkeypatch.setattr("tmrl_like.engine.client.NodeClient", Failing)
    trainer, worker = rig.both()
    directly, beats = subject_of(RUN, SAMPLES, None, None), subject_of(RUN, BEATS, None, None)
    until(lambda: directly in heard)
    errors.append(OutboundBufferLimitError())
    until(lambda: heard.count(beats) == 2)
    deliver(worker, 1)
    said.clear()
    until(lambda: any("CONSUMER.MSG.NEXT" in subject for subject in said), "it asks for more")
    assert trainer.memory == {"w1": [1]}
    assert "is away" not in caplog.text


def test_nodes_without_jetstream_are_said_to_be(rig_with, caplog):
    rig_with(jetstream=None).trainer()
    until(lambda: "the trainer's seat is away" in caplog.text)
    assert (
        "nothing answers for JetStream: enable it at the nodes, and for this user's account"
        in caplog.text
    )
