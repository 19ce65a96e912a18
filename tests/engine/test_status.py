"""What `engine status` finds out, and what it calls wrong."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engine_nodes import Nodes
from leaf_node import LeafNode, dial, leaf_port
from test_leaf import SITE, with_a_stream

from tmrl_like.engine.authority import EngineUser
from tmrl_like.engine.status import EngineStatus, Gateway, Stream, forget, look
from tmrl_like.engine.subjects import SEATS, GatewayState, TrainerSeat, gateway_subject, samples_subject


def a_stream(**state: object) -> Stream:
    copies = [{"name": "b", "current": True}, {"name": "c", "current": True}]
    said = {
        "config": {"name": "tmrl-run", "max_bytes": 1000, "num_replicas": 3},
        "state": {"messages": 2, "bytes": 900, "first_ts": "2020-01-01T00:00:00.123456789Z"},
        "cluster": {"leader": "a", "replicas": copies},
    }
    return msgspec.convert(said | state, Stream)


WELL = EngineStatus({"tls://a:4222": ""}, {("run", ""): a_stream()})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({}, ""),
        ({"nodes": {"tls://b:4222": "does not answer"}}, "tls://b:4222: does not answer"),
        ({"silent": ["arena"]}, "JetStream at the leaf of arena does not answer"),
        ({"streams": {("run", ""): None}}, "run run at the hub has no leader"),
        ({"streams": {("run", ""): a_stream(cluster={})}}, "run run at the hub has no leader"),
        ({"streams": {("run", "arena"): a_stream(cluster={}, config={"name": "tmrl-run"})}}, ""),  # it needs none
        ({"streams": {("run", "arena"): a_stream(state={"bytes": 960})}}, "at the leaf of arena is full: start its"),
        (
            {"streams": {("run", ""): a_stream(cluster={"leader": "a", "replicas": [{"name": "b", "offline": True}]})}},
            "the copy on b is away",
        ),
        (
            {"streams": {("run", ""): a_stream(cluster={"leader": "a", "replicas": [{"name": "b", "lag": 5}]})}},
            "the copy on b is behind",
        ),
    ],
)
def test_what_is_wrong_is_one_line(changed: dict, problem: str) -> None:
    found = list(dataclasses.replace(WELL, **changed).problems())
    assert len(found) == bool(problem)
    assert problem in "".join(found)


def test_a_gateways_rate_is_from_its_first_word_to_its_last() -> None:
    gateway = Gateway("run", "arena", GatewayState("arena"))
    for at, samples in ((10.0, 100), (11.0, 300), (12.0, 700)):
        gateway.say(GatewayState("arena", samples=samples), at)
    assert gateway.samples_per_s == 300


@contextlib.contextmanager
def speaking(url: str, user: EngineUser, *states: GatewayState) -> Iterator[None]:
    """Gateways of a site that say how they are, ten times a second."""
    stop, said = threading.Event(), threading.Event()

    async def speak() -> None:
        client = await dial(url, user)
        await client.publish(samples_subject("run", user.name, "w1"), b"sample")
        while not stop.is_set():
            await client.publish(gateway_subject("run", user.name), b"\x00 no state")
            for state in states:
                await client.publish(gateway_subject("run", user.name), msgspec.msgpack.encode(state))
            await client.flush()
            said.set()
            await asyncio.sleep(0.1)
        await client.close()

    thread = threading.Thread(target=lambda: asyncio.run(speak()))
    thread.start()
    try:
        assert said.wait(60)
        yield
    finally:
        stop.set()
        thread.join()


def test_all_streams_gateways_and_seats_are_found_those_of_leaves_too(
    node: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tmrl_like.engine.status._LISTEN_S", 1.0)
    site, gpu = node.user("arena.1", "site"), node.user("gpu", "trainer")

    async def prepare(leaf: LeafNode) -> None:
        trainer = await dial(node.urls[0], gpu)
        await with_a_stream(trainer, "gpu")
        await with_a_stream(trainer, "gpu", SITE)
        seats = {"name": f"KV_{SEATS}", "subjects": [f"$KV.{SEATS}.>"], "storage": "file", "num_replicas": 1}
        await trainer.request(f"$JS.API.STREAM.CREATE.KV_{SEATS}", msgspec.json.encode(seats), timeout=5)
        seat = msgspec.msgpack.encode(TrainerSeat("gpu one", 7))
        await trainer.request(f"$KV.{SEATS}.run", seat, timeout=5)
        await trainer.close()

    with LeafNode(tmp_path / "leaf", site, leaf_port(node)) as leaf:
        asyncio.run(asyncio.wait_for(prepare(leaf), 60))
        states = [GatewayState("arena.1", SITE, workers=3 + i, gateway=i) for i in range(2)]
        with speaking(leaf.url, site, *states):
            status = look(node.urls, gpu)
            admin = node.authority.local_user("admin")
            assert forget("other", [""], node.urls, admin) == [""]
            assert forget("run", ["", "arena.1"], node.urls, admin) == []
            assert look(node.urls, gpu).streams == {}
    assert status.nodes == {node.urls[0]: ""}
    assert {place: stream and stream.state.messages for place, stream in status.streams.items()} == {
        ("run", ""): 0,
        ("run", "arena.1"): 1,
    }
    leafs = status.streams["run", "arena.1"]
    assert leafs is not None
    assert leafs.oldest_s > 0
    assert status.trainers == {"run": "gpu one"}
    assert [(g.run, g.site, g.state.workers) for g in status.gateways] == [("run", "arena.1", 3), ("run", "arena.1", 4)]
    assert status.runs() == ["run"]
    assert list(status.problems()) == []


def test_who_may_not_look_hears_why(node: Nodes, tmp_path: Path) -> None:
    with Nodes(tmp_path / "other") as other:
        (problem,) = look(other.urls, node.user("gpu", "trainer")).nodes.values()
    assert "no node of the engine that this machine's user is for" in problem


@pytest.mark.long
def test_a_node_that_is_away_and_its_copy_are_named(three_nodes: Nodes, tmp_path: Path) -> None:
    gpu = three_nodes.user("gpu", "trainer")

    async def prepare() -> None:
        trainer = await dial(three_nodes.urls[0], gpu)
        await with_a_stream(trainer, "gpu", replicas=3)
        await trainer.close()

    asyncio.run(asyncio.wait_for(prepare(), 60))
    assert list(look(three_nodes.urls, gpu).problems()) == []
    leader = three_nodes.leader("tmrl-run")
    dead = next(i for i in range(3) if i != leader)
    three_nodes.kill(dead)
    expected = f"the stream of run run at the hub: the copy on {three_nodes.names[dead]} is "
    for _ in range(10):  # its leader takes some seconds to see it
        here, there, *_ = *look(three_nodes.urls, gpu).problems(), ""
        if there.startswith(expected):
            break
    assert here == f"{three_nodes.urls[dead]}: does not answer"
    assert there.startswith(expected)
