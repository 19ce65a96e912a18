"""A site's own node: what crosses the long link, and what its machine could forge."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path

import nats
from engine_nodes import Nodes, free_ports
from leaf_node import LeafNode, dial, leaf_port, until

from tmrl_like.engine.broker import nats_server
from tmrl_like.engine.revocation import push_revocations
from tmrl_like.engine.subjects import (
    acks_subject,
    beats_of_part,
    beats_subject,
    gateway_subject,
    leaf_inbox,
    policy_subject,
    samples_of_part,
    samples_subject,
    stream_name,
)

STREAM = stream_name("run")
SITE, OTHER = "arena=2E1", "lab"
LARGE = 200_000
HOSTILE = """
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}", domain: "{domain}" }}
leafnodes {{
  reconnect: "1s"
  remotes: [{{ url: "tls://localhost:{hub}", credentials: "{creds}", tls {{ ca_file: "{ca}" }} }}]
}}
"""


def large(number: int) -> bytes:
    return b"%d" % number * LARGE


async def requested(client: nats.NATS, api: str, body: object, reply: str) -> dict:
    """A broker's answer to a JetStream request, in an inbox of one's choice."""
    answers = await client.subscribe(reply)
    await client.publish(api, json.dumps(body).encode(), reply=reply)
    answer = await answers.next_msg(5)
    await answers.unsubscribe()
    return json.loads(answer.data)


async def with_a_stream(trainer: nats.NATS, name: str, domain: str = "", replicas: int = 1) -> None:
    """Make the run's stream at the hub or in a leaf's domain."""
    api, reply = ("$JS.API", f"_INBOX.{name}.made") if not domain else (f"$JS.{domain}.API", leaf_inbox(name, domain))
    config = {"name": STREAM, "subjects": [samples_of_part("run")], "storage": "file", "num_replicas": replicas}
    for _ in range(100):  # until the leaf has dialled
        try:
            answer = await requested(trainer, f"{api}.STREAM.CREATE.{STREAM}", config, f"{reply}.made")
        except (nats.errors.TimeoutError, nats.errors.NoRespondersError, json.JSONDecodeError):
            await asyncio.sleep(0.1)
        else:
            assert "error" not in answer, answer
            return
    raise AssertionError("no answer")


async def read(trainer: nats.NATS, name: str, domain: str, count: int) -> list[nats.aio.msg.Msg]:
    """The first messages of a leaf's stream, across the link."""
    inbox = leaf_inbox(name, domain)
    consumer = {"name": "c", "deliver_policy": "all", "ack_policy": "none", "mem_storage": True}
    asked = {"stream_name": STREAM, "config": consumer}
    made = await requested(trainer, f"$JS.{domain}.API.CONSUMER.CREATE.{STREAM}.c", asked, f"{inbox}.c")
    assert "error" not in made, made
    pulled = await trainer.subscribe(f"{inbox}.pull")
    asked = {"batch": count, "expires": 5_000_000_000}
    await trainer.publish(f"$JS.{domain}.API.CONSUMER.MSG.NEXT.{STREAM}.c", json.dumps(asked).encode(), pulled.subject)
    return [await pulled.next_msg(5) for _ in range(count)]


def test_samples_cross_the_long_link_once_and_when_they_are_asked_for(node: Nodes, tmp_path: Path) -> None:
    site, other, gpu = node.user("arena.1", "site"), node.user("lab", "site"), node.user("gpu", "trainer")

    async def run(leaf: LeafNode) -> None:
        trainer, hub_gateway = await dial(node.urls[0], gpu), await dial(node.urls[0], other)
        gateway, second = await dial(leaf.url, site), await dial(leaf.url, site)
        heard: list[tuple[str, bytes]] = []

        async def note(message: nats.aio.msg.Msg) -> None:
            heard.append((message.subject, message.data))

        for subject in (samples_of_part("run"), beats_of_part("run"), gateway_subject("run")):
            await trainer.subscribe(subject, cb=note)
        subjects = (policy_subject("run"), acks_subject("run", "arena.1"))
        down = [await client.subscribe(subject) for client in (gateway, second) for subject in subjects]
        await with_a_stream(trainer, "gpu")
        await with_a_stream(trainer, "gpu", SITE)
        for i in range(5):
            said = await gateway.request(samples_subject("run", "arena.1", "w1"), large(i), timeout=5)
            assert json.loads(said.data)["seq"] == i + 1
        await hub_gateway.request(samples_subject("run", OTHER, "w2"), b"of the lab", timeout=5)
        await gateway.publish(beats_subject("run", "arena.1", "w1"), b"beat")
        await gateway.publish(gateway_subject("run", "arena.1"), b"state")
        down_before, up_before = leaf.crossed()
        await trainer.publish(policy_subject("run"), large(9))
        await trainer.publish(acks_subject("run", "arena.1"), b"ack")
        assert [(await subscription.next_msg(5)).data for subscription in down] == 2 * [large(9), b"ack"]
        messages = await read(trainer, "gpu", SITE, 5)
        assert [(m.subject, m.data) for m in messages] == [
            (samples_subject("run", "arena.1", "w1"), large(i)) for i in range(5)
        ]
        assert [int(m.reply.split(".")[5]) for m in messages] == [1, 2, 3, 4, 5]
        down_after, up_after = leaf.crossed()
        assert LARGE <= down_after - down_before < 1.5 * LARGE, "a policy crosses once, for two gateways"
        assert 5 * LARGE <= up_after - up_before < 5.5 * LARGE, "a sample crosses once"
        await until(lambda: len(heard) >= 3)
        assert sorted(data for _, data in heard) == [b"beat", b"of the lab", b"state"]
        info = await requested(trainer, f"$JS.{SITE}.API.STREAM.INFO.{STREAM}", {}, f"{leaf_inbox('gpu', SITE)}.i")
        assert info["state"]["messages"] == 5
        for client in (trainer, hub_gateway, gateway, second):
            await client.close()

    with LeafNode(tmp_path / "leaf", site, leaf_port(node)) as leaf:
        asyncio.run(asyncio.wait_for(run(leaf), 60))


def test_a_hostile_leaf_forges_nothing_of_others_and_hears_none_of_it(node: Nodes, tmp_path: Path) -> None:
    """Its machine's owner runs what they like with its key: here a node that lets everybody do everything."""
    site, other, gpu = node.user("arena.1", "site"), node.user("lab", "site"), node.user("gpu", "trainer")
    (port,) = free_ports(1)
    assert site.leaf is not None
    (tmp_path / "creds").write_text(site.leaf.credentials)
    (tmp_path / "ca").write_text(site.ca_certificate)
    paths = {name: (tmp_path / name).as_posix() for name in ("creds", "ca")}
    config = HOSTILE.format(port=port, folder=tmp_path.as_posix(), domain=SITE, hub=leaf_port(node), **paths)
    (tmp_path / "conf").write_text(config)
    allowed = {gateway_subject("run", "arena.1"), beats_subject("run", "arena.1", "w1"), f"{leaf_inbox('gpu', SITE)}.x"}
    forged = [
        *(samples_subject("run", name, "w1") for name in ("arena.1", "lab")),
        *(beats_subject("run", name, "w1") for name in ("arena.1", "lab")),
        *(gateway_subject("run", name) for name in ("arena.1", "lab")),
        *(acks_subject("run", name) for name in ("arena.1", "lab")),
        policy_subject("run"),
        f"{leaf_inbox('gpu', SITE)}.x",
        f"{leaf_inbox('gpu', OTHER)}.x",
        "_INBOX.gpu.x",
        "_INBOX.lab.x",
        "$KV.tmrl-seats.run",
        f"$JS.API.STREAM.PURGE.{STREAM}",
        f"$JS.{OTHER}.API.STREAM.PURGE.{STREAM}",
    ]

    async def run() -> None:
        arrived: list[str] = []
        stolen: list[str] = []

        async def note(message: nats.aio.msg.Msg) -> None:
            if message.data == b"forged":
                arrived.append(message.subject)

        async def steal(message: nats.aio.msg.Msg) -> None:
            if message.data == b"secret":
                stolen.append(message.subject)

        trainer, gateway = await dial(node.urls[0], gpu), await dial(node.urls[0], other)
        for subject in (samples_of_part("run"), beats_of_part("run"), gateway_subject("run"), "_INBOX.gpu.>"):
            await trainer.subscribe(subject, cb=note)
        for subject in (policy_subject("run"), acks_subject("run", "lab"), "_INBOX.lab.>"):
            await gateway.subscribe(subject, cb=note)
        await with_a_stream(trainer, "gpu")
        await gateway.request(samples_subject("run", "lab", "w1"), b"1", timeout=5)
        owner = await nats.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False)
        await owner.subscribe(">", cb=steal)
        while not arrived:  # until it has dialled the hub, and the hub has told it what is wanted there
            await owner.publish(gateway_subject("run", "arena.1"), b"forged")
            await asyncio.sleep(0.1)
        for subject in forged:
            await owner.publish(subject, b"forged")
        await trainer.publish(acks_subject("run", "lab"), b"secret")
        await trainer.publish(acks_subject("run", "arena.1"), b"secret")
        await gateway.publish(samples_subject("run", "lab", "w1"), b"secret")
        await owner.flush()
        await until(lambda: allowed <= set(arrived) and bool(stolen))
        await asyncio.sleep(0.2)
        assert set(arrived) == allowed
        assert set(stolen) == {acks_subject("run", "arena.1")}
        info = await requested(trainer, f"$JS.API.STREAM.INFO.{STREAM}", {}, "_INBOX.gpu.info")
        assert info["state"]["messages"] == 2
        for client in (trainer, gateway, owner):
            await client.close()

    with subprocess.Popen([nats_server(), "-c", tmp_path / "conf"], stderr=subprocess.DEVNULL) as process:
        try:
            asyncio.run(asyncio.wait_for(run(), 60))
        finally:
            process.kill()


def test_the_leaf_of_a_revoked_site_is_cut_and_stays_out(node: Nodes, tmp_path: Path) -> None:
    site = node.user("arena.1", "site")
    with LeafNode(tmp_path / "leaf", site, leaf_port(node)):
        while not node.monitor(0, "leafz")["leafs"]:
            time.sleep(0.02)
        node.authority.revoke("arena.1")
        assert push_revocations(node.authority) == []
        while node.monitor(0, "leafz")["leafs"]:
            time.sleep(0.02)
        while "Authentication Failure" not in node.log(0).partition("Credentials Revoked")[2]:  # it dialled again
            time.sleep(0.02)
        assert not node.monitor(0, "leafz")["leafs"]
