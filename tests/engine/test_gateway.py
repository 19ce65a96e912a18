"""Samples go from workers through a server to a real node's stream, and from there to a trainer."""

import asyncio
import contextlib
import re
import shutil
import subprocess
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from engine_nodes import GUIDE, nats_server, rights
from engine_rig import RUN, deliver, make, trainer_link
from kit.packets import noise
from kit.ports import free_ports
from kit.waiting import until

from tmrl_like.engine.connection import EngineConnection
from tmrl_like.engine.gateway import ENGINE, Gateway
from tmrl_like.engine.options import EngineOptions
from tmrl_like.engine.subjects import ANSWERS, subject_of
from tmrl_like.errors import CredentialsError
from tmrl_like.server.relay import Relay
from tmrl_like.server.server import Server
from tmrl_like.transport import KeyFolder, TransportOptions, connect, listen
from tmrl_like.types import Receipt
from tmrl_like.wire import messages as m

NOBODY = EngineOptions(nodes=(f"nats://localhost:{free_ports(1)[0]}",), run=RUN)


@pytest.fixture
def inner(tmp_path):
    """The link of a gateway to its workers."""
    return listen("inproc", "127.0.0.1", 0, KeyFolder(tmp_path / "keys"), TransportOptions())


def trainings_of(worker):
    """Return how many trainings the worker has heard of."""
    return len(set(worker.feeds) - {0})


def test_the_stream_has_it_received_and_the_trainer_has_it_stored(rig):
    first, server = rig.trainer(), rig.server()
    worker = rig.worker(server)
    deliver(worker, 50)
    assert first.memory == {"w1": list(range(1, 51))}
    first.close()
    make(worker, 50)
    until(lambda: worker.received == 100)
    assert not worker.pending(), "a worker may leave"
    assert worker.stored == 50
    assert server.has_trainer()
    assert rig.in_stream() > 0
    second = rig.trainer(first.receiver)
    until(lambda: worker.kept == rig.in_stream() == 0)
    assert second.memory == {"w1": list(range(51, 101))}
    assert trainings_of(worker) == 1, "another trainer is no reason to send it all again"


@pytest.mark.fault("disk", "a node of an engine loses its disk", "no sample is lost")
def test_a_stream_that_is_lost_with_its_disk_is_filled_again(rig):
    trainer, worker = rig.both()
    deliver(worker, 20)
    trainer.close()
    make(worker, 20)
    until(lambda: worker.received == 40)
    rig.nodes.kill(0)
    shutil.rmtree(rig.nodes.home(0) / "streams")
    rig.nodes.start(0)
    trainer = rig.trainer(trainer.receiver)
    deliver(worker, 1)
    assert trainer.memory == {"w1": list(range(21, 42))}
    assert trainings_of(worker) == 1


def test_a_policy_comes_to_each_server_once_and_to_one_that_comes_later(rig):
    trainer, first = rig.trainer(reads={"policy_again_s": 0.1}), rig.server()
    worker = rig.worker(first)
    until(lambda: trainer.link.session.connected)
    version = trainer.link.broadcast_model(torch.nn.Linear(1024, 768))  # several frames
    until(lambda: worker.policies == [version])
    later = rig.worker(rig.server(), "w2")
    until(lambda: later.policies == [version])
    deliver(worker, 1)
    assert worker.policies == [version], "though it went out again"


def test_a_worker_hears_that_its_samples_do_not_fit(rig):
    trainer, worker = rig.both()
    deliver(worker, 1)
    trainer.link.reject(Receipt("w1", worker.log.incarnation, 1), "they are too long")
    make(worker, 1)
    until(lambda: worker.dismissed == "they are too long")


def test_a_worker_hears_that_its_packet_is_too_large_for_the_nodes_and_what_to_do(rig_with):
    _, worker = rig_with(more="max_payload: 1MB").both()
    noise = np.random.default_rng(0).bytes(1 << 20)  # as it cannot be compressed
    worker.append((None, noise, 0.0, False, False, {}))
    until(lambda: worker.dismissed)
    assert re.fullmatch(
        r"a packet takes 1,048,\d{3} bytes, and the engine's nodes take 1,048,576 at most: raise "
        "max_payload in their configuration",
        worker.dismissed,
    )


def test_workers_hear_of_another_training_once(rig):
    first, worker = rig.both()
    deliver(worker, 5)
    first.close()
    rig.trainer()
    until(lambda: trainings_of(worker) == 2)
    deliver(worker, 5)
    assert trainings_of(worker) == 2


def test_a_trainer_that_dials_the_server_reads_what_to_do(rig, caplog):
    caplog.set_level("INFO")
    server = rig.server()
    trainer = rig.keep(trainer_link(connect("inproc", *server.address, rig.keys)))
    until(lambda: "connected already (the engine, --server.engine nats://localhost:" in caplog.text)
    assert not trainer.session.connected


def test_without_a_node_workers_are_served_and_nothing_is_kept(inner, tmp_path):
    gateway = Gateway(inner, NOBODY)
    assert not gateway.send(ENGINE, noise(1)), "the relay keeps it, or the worker"
    assert gateway.send(ENGINE, m.encode(m.Beat("w")))
    assert isinstance(m.decode(gateway.receive(0.0).data)[0], m.Hello)
    peer = connect("inproc", *gateway.address, KeyFolder(tmp_path / "keys"))
    peer.send(b"hello")
    until(lambda: (incoming := gateway.receive(0.1)) and incoming.data == b"hello")
    started = time.monotonic()
    gateway.close()
    assert time.monotonic() - started < 20.0


def test_packets_that_a_lost_connection_cancels_leave_room_for_others(node, inner, monkeypatch):
    call = EngineConnection.call

    def call_and_cancel(connection, function, *arguments):
        def run():
            before = asyncio.all_tasks()
            function(*arguments)
            for task in asyncio.all_tasks() - before:
                task.cancel()

        call(connection, run)

    monkeypatch.setattr(EngineConnection, "call", call_and_cancel)
    with contextlib.closing(Gateway(inner, node.options(RUN, "arena"))) as gateway:
        for _ in range(10):
            until(lambda: gateway.send(ENGINE, noise(1, size=1 << 20)), within_s=10.0)
        ack = until(lambda: next_ack(gateway))
        assert (ack.received, ack.again) == (0, True)


def next_ack(gateway):
    """Return the next message of a gateway without a trainer if it is an acknowledgement."""
    incoming = gateway.receive(0.1)
    said = incoming and m.decode(incoming.data)[0]
    return said if isinstance(said, m.Ack) else None


def test_a_server_that_hung_seats_its_engine_once(node, inner):
    woken = threading.Event()
    inner.wake = woken.set
    with contextlib.closing(Gateway(inner, node.options(RUN, "arena"))) as gateway:
        relay = Relay(gateway)
        relay.handle(gateway.receive(0.0), 0.0)

        async def answer(client):
            while not woken.is_set():
                word = m.Dismissal("w", 1, "it does not fit")
                await client.publish(subject_of(RUN, ANSWERS, "arena"), m.encode(word))
                await client.flush()
            await asyncio.Event().wait()

        with contextlib.closing(EngineConnection(node.options(RUN, "gpu"), answer)):
            assert woken.wait(60.0)
        relay.tick(10.0)
        assert relay.trainer is None
        hellos = 0
        while hellos < 2:
            if incoming := gateway.receive(0.1):
                relay.handle(incoming, 10.0)
                hellos += isinstance(m.decode(incoming.data)[0], m.Hello)
        assert relay.trainer is not None
        assert relay.counters.refused == 0


@pytest.mark.parametrize(
    "missing", ["tmrl.*.s.arena.>", "tmrl.*.b.arena.>", "tmrl.*.g.arena", "tmrl.*.a.arena"]
)
def test_a_site_that_lacks_a_right_ends_its_server_at_once(rig, missing, caplog):
    allowed = {
        kind: [s for s in subjects if s != missing] for kind, subjects in rights("arena").items()
    }
    options = rig.nodes.options(RUN, rig.nodes.user("arena", allowed))
    server = rig.keep(Server(0, transport="inproc", keys_dir=rig.keys.path, engine=options))
    what = "subscribe" if ".a." in missing else "publish"
    with pytest.raises(CredentialsError, match=f"does not allow its user arena to {what} to"):
        server.serve_forever()
    (line,) = caplog.messages
    assert line.startswith("the connection to the engine ends: ")
    assert "Traceback" not in caplog.text


def test_a_site_is_served_through_a_node_of_its_own(rig_with, tmp_path):
    """The node is configured by docs/deploy/nats_leaf.conf, but without TLS."""
    leaves, port = free_ports(2)
    rig = rig_with(more=f'leafnodes {{ listen: "127.0.0.1:{leaves}" }}')
    creds = str(rig.nodes.user("arena-node", rights("arena-node")))
    config = (GUIDE.parents[1] / "deploy" / "nats_leaf.conf").read_text(encoding="utf-8")
    for theirs, ours in (
        ("127.0.0.1:4222", f"127.0.0.1:{port}"),
        ("arena-node.creds", creds),
        ("urls: .*", f'urls: ["nats://127.0.0.1:{leaves}"]'),
        ("tls {.*}", ""),
    ):
        config = re.sub(theirs, ours, config)
    (tmp_path / "leaf.conf").write_text(config)
    rig.arena = replace(rig.arena, nodes=(f"nats://localhost:{port}",))
    with subprocess.Popen([nats_server(), "-c", str(tmp_path / "leaf.conf")]) as leaf:
        try:
            trainer, worker = rig.both()
            deliver(worker, 20)
        finally:
            leaf.kill()
    assert trainer.memory == {"w1": list(range(1, 21))}
