"""What the brokers refuse, whoever asks."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import socket
import ssl
import time
from pathlib import Path

import msgspec
import nats
import pytest
from engine_nodes import Nodes
from leaf_node import dial, leaf_port
from nats.js.api import StreamConfig

from tmrl_like.engine.authority import Authority, EngineUser, engine_user
from tmrl_like.engine.broker import CLUSTER_ABOVE
from tmrl_like.engine.options import address_of
from tmrl_like.engine.revocation import push_revocations
from tmrl_like.engine.subjects import (
    SEATS,
    acks_subject,
    beats_subject,
    gateway_subject,
    inbox,
    policy_subject,
    samples_of_part,
    samples_subject,
    stream_name,
)
from tmrl_like.errors import CredentialsError
from tmrl_like.transport import KeyFolder

RUN, SITE, OTHER = "run", "arena", "lab"
STREAM = stream_name(RUN)
SAMPLES = samples_subject(RUN, SITE, "w1")
API = "$JS.API."

SITE_MAY_NOT_PUBLISH = {
    "a policy": policy_subject(RUN),
    "another site's samples": samples_subject(RUN, OTHER, "w1"),
    "another site's signs of life": beats_subject(RUN, OTHER, "w1"),
    "another site's state": gateway_subject(RUN, OTHER),
    "acknowledgements for another site": acks_subject(RUN, OTHER),
    "acknowledgements for itself": acks_subject(RUN, SITE),
    "into the trainer's inbox": f"{inbox('gpu')}.x",
    "a trainer's seat": f"$KV.{SEATS}.{RUN}",
    "a stream": f"{API}STREAM.CREATE.x",
    "a change of the stream": f"{API}STREAM.UPDATE.{STREAM}",
    "a purge": f"{API}STREAM.PURGE.{STREAM}",
    "the stream's end": f"{API}STREAM.DELETE.{STREAM}",
    "one message's end": f"{API}STREAM.MSG.DELETE.{STREAM}",
    "a consumer": f"{API}CONSUMER.CREATE.{STREAM}.x",
    "a question for a message": f"{API}STREAM.MSG.GET.{STREAM}",
    "the leader's step down": f"{API}STREAM.LEADER.STEPDOWN.{STREAM}",
    "another leaf's stream": f"$JS.{OTHER}.API.STREAM.INFO.{STREAM}",
    "another JWT of the account": "$SYS.REQ.CLAIMS.UPDATE",
}
SITE_MAY_NOT_HEAR = {
    "samples": samples_of_part(RUN),
    "its own samples": SAMPLES,
    "everything": ">",
    "another site's acknowledgements": acks_subject(RUN, OTHER),
    "all acknowledgements": acks_subject(RUN, "*").replace("=2A", "*"),
    "another's inbox": f"{inbox('gpu')}.>",
    "all inboxes": "_INBOX.>",
    "seats": f"$KV.{SEATS}.>",
}
TRAINER_MAY_NOT_PUBLISH = {
    "samples": SAMPLES,
    "signs of life": beats_subject(RUN, SITE, "w1"),
    "a gateway's state": gateway_subject(RUN, SITE),
    "the stream's end": f"{API}STREAM.DELETE.{STREAM}",
    "a leaf's stream's end": f"$JS.{SITE}.API.STREAM.DELETE.{STREAM}",
    "a change of the stream": f"{API}STREAM.UPDATE.{STREAM}",
    "another JWT of the account": "$SYS.REQ.CLAIMS.UPDATE",
}


class Watched:
    """A client that keeps what its broker refuses."""

    def __init__(self, url: str, user: EngineUser) -> None:
        self._url, self._user = url, user
        self.errors: list[str] = []

    async def __aenter__(self) -> Watched:
        self.client = await dial(self._url, self._user, error_cb=self._note)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def _note(self, error: Exception) -> None:
        self.errors.append(str(error).lower())

    async def refusals(self, publish: dict[str, str], hear: dict[str, str]) -> None:
        """Try all of it; each is refused."""
        for subject in publish.values():
            await self.client.publish(subject, b"")
        for subject in hear.values():
            await self.client.subscribe(subject)
        expected = [f'publish to "{subject}"' for subject in publish.values()]
        expected += [f'subscription to "{subject}"' for subject in hear.values()]
        missing = expected
        for _ in range(200):
            await self.client.flush()
            missing = [e for e in expected if not any(e.lower() in error for error in self.errors)]
            if not missing:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"allowed: {missing}")


async def make_stream(client: nats.NATS) -> None:
    await client.jetstream(timeout=5).add_stream(StreamConfig(STREAM, subjects=[samples_of_part(RUN)]))


def test_a_site_and_a_trainer_do_what_is_theirs_and_nothing_else(node: Nodes) -> None:
    async def act() -> None:
        site, trainer = node.user(SITE, "site"), node.user("gpu", "trainer")
        async with Watched(node.urls[0], site) as gateway, Watched(node.urls[0], trainer) as learner:
            await make_stream(learner.client)
            heard = await gateway.client.subscribe(policy_subject(RUN))
            await gateway.client.flush()
            await learner.client.publish(policy_subject(RUN), b"weights")
            assert (await heard.next_msg(5)).data == b"weights"
            assert json.loads((await gateway.client.request(SAMPLES, b"x", timeout=5)).data)["seq"] == 1
            assert gateway.errors == learner.errors == []
            await gateway.refusals(SITE_MAY_NOT_PUBLISH, SITE_MAY_NOT_HEAR)
            await learner.refusals(TRAINER_MAY_NOT_PUBLISH, {"another's inbox": f"{inbox(SITE)}.>"})
            state = (await learner.client.jetstream(timeout=5).stream_info(STREAM)).state
            assert state.messages == 1

    asyncio.run(act())
    secrets = json.loads((node.keys.path / "engine.json").read_bytes())
    hidden = [secrets[name].encode() for name in ("operator_seed", "account_seed", "system_seed", "ca_key")]
    files = [file for file in node.home(0).rglob("*") if file.is_file()]
    assert {"nats-server.conf", "node.key", "log"} < {file.name for file in files}
    contents = b"".join(file.read_bytes() for file in files)
    tokens = re.findall(rb"\.(eyJ[\w-]+)\.", contents)
    assert tokens
    contents += b"".join(base64.urlsafe_b64decode(token + b"=" * (-len(token) % 4)) for token in tokens)
    assert not any(secret in contents for secret in hidden)


def test_a_confirmation_sent_elsewhere_than_to_its_publisher_asks_jetstream_for_nothing(node: Nodes) -> None:
    """It goes to any reply subject, whatever its publisher's rights: but JetStream takes it for no request."""

    async def act() -> None:
        site, trainer = node.user(SITE, "site"), node.user("gpu", "trainer")
        async with Watched(node.urls[0], site) as gateway, Watched(node.urls[0], trainer) as learner:
            await make_stream(learner.client)
            requests = ("STREAM.PURGE", "STREAM.DELETE", "STREAM.MSG.DELETE", "STREAM.UPDATE", "STREAM.LEADER.STEPDOWN")
            for request in requests:
                await gateway.client.publish(SAMPLES, b"x", reply=f"{API}{request}.{STREAM}")
            await gateway.client.request(SAMPLES, b"x", timeout=5)
            state = (await learner.client.jetstream(timeout=5).stream_info(STREAM)).state
            assert (state.messages, state.first_seq) == (len(requests) + 1, 1)

    asyncio.run(act())


def test_who_has_no_user_of_this_engine_is_not_let_in(node: Nodes, tmp_path: Path) -> None:
    worker = KeyFolder(tmp_path / "robot")
    worker.join(node.keys.invite("robot"))
    with pytest.raises(CredentialsError, match="holds no site of an engine"):
        engine_user(worker, "site")
    assert "engine" not in "".join(file.name for file in worker.path.rglob("*"))

    other = Authority.create(KeyFolder(tmp_path / "other"), ("localhost",)).local_user("trainer")
    own = node.authority.local_user("trainer")
    site = node.user(SITE, "site")
    assert site.leaf is not None
    as_leaf = site.leaf.credentials.splitlines()[1]
    replace = msgspec.structs.replace
    strangers = {
        "nobody": None,
        "another engine's": replace(own, jwt=other.jwt, seed=other.seed),
        "with a JWT that it has seen": replace(own, seed=other.seed),
        "with a leaf's JWT": replace(site, jwt=as_leaf),
    }

    assert is_let_in(node.urls[0], own)
    with pytest.raises(ssl.SSLCertVerificationError):  # it takes this node for none of its engine's
        is_let_in(node.urls[0], other)
    for what, stranger in strangers.items():
        assert greet(node.urls[0], stranger, own.ca_certificate) == "-ERR 'Authorization Violation'", what


def test_a_sites_certificate_is_that_of_no_node(three_nodes: Nodes, tmp_path: Path) -> None:
    user = three_nodes.user(SITE, "site")
    assert user.leaf is not None

    def greets(key: str, certificate: str) -> bool:
        """Whether a node of the cluster talks to who shows this certificate."""
        (tmp_path / "key").write_text(key)
        (tmp_path / "certificate").write_text(certificate)
        context = ssl.create_default_context(cadata=user.ca_certificate)
        context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
        with socket.create_connection(("127.0.0.1", address_of(three_nodes.names[0])[1] + CLUSTER_ABOVE), 5) as raw:
            try:
                with context.wrap_socket(raw, server_hostname="localhost") as link:
                    return link.recv(4) == b"INFO"
            except ssl.SSLError:
                return False

    node = three_nodes.authority.node(three_nodes.names[1])
    assert greets(node.tls_key, node.tls_certificate)
    assert not greets(user.leaf.node.tls_key, user.leaf.node.tls_certificate)
    with pytest.raises(CredentialsError, match="is a node of this engine"):
        three_nodes.user("Localhost", "site")
    assert leaf_port(three_nodes)


def test_a_revoked_site_is_cut_and_does_not_come_back_and_others_stay(three_nodes: Nodes) -> None:
    async def act() -> None:
        site, other = three_nodes.user(SITE, "site"), three_nodes.user(OTHER, "site")
        three_nodes.kill(2)
        gateways = [await dial(url, site) for url in three_nodes.urls[:2]]
        async with Watched(three_nodes.urls[1], other) as stays:
            three_nodes.authority.revoke(SITE)
            begun = time.monotonic()
            silent = await asyncio.to_thread(push_revocations, three_nodes.authority, 1.0)
            assert silent == [three_nodes.names[2]]
            while any(gateway.is_connected for gateway in gateways):
                assert time.monotonic() < begun + 30, "not cut"
                await asyncio.sleep(0.01)
            await stays.client.flush()
            assert stays.errors == []
            for url in three_nodes.urls[:2]:
                assert not is_let_in(url, site)
            three_nodes.kill(1)
            for i in (1, 2):
                three_nodes.start(i, wait=False)
            for url in three_nodes.urls[1:]:  # a restart forgets nothing, and what was away learns it from the others
                await until_refused(url, site)
            assert is_let_in(three_nodes.urls[2], three_nodes.user(SITE, "site"))

    asyncio.run(act())


async def until_refused(url: str, user: EngineUser) -> None:
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError):  # it is not up yet
            if not is_let_in(url, user):
                return
        assert time.monotonic() < deadline, "let in"
        await asyncio.sleep(0.05)


def is_let_in(url: str, user: EngineUser) -> bool:
    return greet(url, user, user.ca_certificate) == "PONG"


def greet(url: str, user: EngineUser | None, ca_certificate: str) -> str:
    """Say who one is, as this user or not at all; returns what the node says to that."""
    host, port = address_of(url)
    tls = ssl.create_default_context(cadata=ca_certificate)
    with socket.create_connection((host, port), 10) as raw, tls.wrap_socket(raw, server_hostname=host) as link:
        stream = link.makefile("rwb")
        nonce = json.loads(stream.readline().removeprefix(b"INFO "))["nonce"]
        who = {"jwt": user.jwt, "sig": user.sign(nonce).decode()} if user else {}
        stream.write(b"CONNECT " + json.dumps({"verbose": False, "pedantic": False, **who}).encode() + b"\r\nPING\r\n")
        stream.flush()
        return next(line.decode().strip() for line in stream if not line.startswith((b"PING", b"INFO")))
