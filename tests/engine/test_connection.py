"""One connection to an engine: it comes back, sends nothing twice, and says what ends it."""

import asyncio
import logging
import signal
import socket
import threading
import time

import msgspec
import pytest
from engine_nodes import Nodes

from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.errors import CredentialsError

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="freezes processes")


def until(condition, within_s=20.0):
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_goes_on_when_a_node_is_killed_frozen_or_back(node, caplog):
    caplog.set_level(logging.INFO, "tmrl_like.engine")
    user = node.user("gpu", "trainer")
    heard, ended = [], threading.Event()

    async def attend(client):
        await hear(client, "tmrl.r.b.0.arena.*", lambda message: None)
        heard.append(client)
        await asyncio.Event().wait()

    connection = EngineConnection(node.urls, user, attend, ended.set)
    until(lambda: len(heard) == 1)
    node.kill(0)
    until(lambda: not connection.connected)
    node.start(0)
    until(lambda: len(heard) == 2)
    node.processes[0].send_signal(signal.SIGSTOP)
    until(lambda: not connection.connected)  # no goodbye is waited for: nats-py alone would wait 30 s
    node.processes[0].send_signal(signal.SIGCONT)
    until(lambda: len(heard) == 3)
    connection.check()
    connection.close(0.0)
    connection.close(0.0)
    assert not ended.is_set()
    assert "Traceback" not in caplog.text


def test_what_it_subscribed_to_raises_in_its_owner(node):
    failed = threading.Event()

    async def attend(client):
        await hear(client, "tmrl.r.p", lambda message: [][0])
        await client.publish("tmrl.r.p", b"x")
        await asyncio.Event().wait()

    site = node.user("arena", "site")
    connection = EngineConnection(node.urls, site, attend, failed.set)
    publisher = EngineConnection(node.urls, node.user("gpu", "trainer"), publish_a_policy)
    assert failed.wait(20)
    with pytest.raises(IndexError):
        connection.check()
    connection.close(0.0)
    publisher.close(0.0)


async def publish_a_policy(client):
    while True:
        await client.publish("tmrl.r.p", b"policy")
        await asyncio.sleep(0.05)


def test_when_its_work_is_done_it_is_over_and_what_was_said_has_left(node):
    heard = []

    async def listen(client):
        await hear(client, "tmrl.r.p", lambda message: heard.append(message.data))
        await client.flush()
        listening.set()
        await asyncio.Event().wait()

    async def say(client):
        await client.publish("tmrl.r.p", b"last words")

    listening = threading.Event()
    listener = EngineConnection(node.urls, node.user("arena", "site"), listen)
    assert listening.wait(20)
    EngineConnection(node.urls, node.user("gpu", "trainer"), say).close()
    until(lambda: heard == [b"last words"])
    listener.close(0.0)


def test_another_engines_user_and_another_engines_node_end_it_in_one_line(node, tmp_path):
    stranger = Nodes(tmp_path / "other").user("arena", "site")  # signed for nodes that do not run
    liar = msgspec.structs.replace(node.user("arena", "site"), seed=stranger.seed)
    for user, line in ((liar, "refuses this machine's user arena"), (stranger, "is no node of the engine")):
        failed = threading.Event()
        connection = EngineConnection(node.urls, user, publish_a_policy, failed.set)
        assert failed.wait(20)
        with pytest.raises(CredentialsError, match=line):
            connection.check()
        connection.close(0.0)


def test_who_is_refused_while_a_node_is_away_is_not_told_that_none_answers(node, caplog, monkeypatch, until):
    monkeypatch.setattr("tmrl_like.engine.connection._COMPLAIN_AFTER_S", 0.0)
    liar = msgspec.structs.replace(node.user("arena", "site"), seed=node.user("other", "site").seed)
    monkeypatch.setattr("random.sample", lambda nodes, count: nodes)
    connection = EngineConnection([node.urls[0], "tls://localhost:1"], liar, publish_a_policy)
    until(lambda: "refuses this machine's user arena" in caplog.text)
    connection.close(0.0)
    assert "no node of the engine answers" not in caplog.text


def test_it_ends_at_once_where_nobody_answers(tmp_path):
    user = Nodes(tmp_path / "engine").user("arena", "site")
    with socket.create_server(("localhost", 0)) as mute:
        connection = EngineConnection([f"tls://localhost:{mute.getsockname()[1]}"], user, publish_a_policy)
        mute.settimeout(20)
        with mute.accept()[0]:
            connection.close(0.0)
            assert not connection._thread.is_alive()


def test_who_answers_in_the_clear_gets_nothing_to_read(node):
    """A node's first line could ask for no encryption, and be somebody else's."""
    with socket.create_server(("localhost", 0)) as listening:
        listening.settimeout(20)
        url = f"tls://localhost:{listening.getsockname()[1]}"
        connection = EngineConnection([url], node.user("arena", "site"), publish_a_policy)
        with listening.accept()[0] as line:
            line.settimeout(20)
            line.sendall(b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"nonce":"abc"}\r\n')
            said = b"".join(iter(lambda: receive(line), b""))
    assert said.startswith(b"\x16\x03"), said  # a TLS greeting
    assert b"CONNECT" not in said
    connection.close(0.0)


def receive(line: socket.socket) -> bytes:
    try:
        return line.recv(65536)
    except ConnectionError:
        return b""
