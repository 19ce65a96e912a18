"""A connection to an engine: it reconnects, sends nothing twice, and reports the error that ends
it.
"""

import asyncio
import contextlib
import itertools
import os
import re
import signal
import socket
import threading
import time

import pytest
from engine_nodes import Nodes, certificate
from kit.ports import free_ports
from kit.waiting import until

from tmrl_like.engine.client import NodeClient
from tmrl_like.engine.connection import EngineConnection, hear
from tmrl_like.engine.options import EngineOptions
from tmrl_like.errors import ConfigError, CredentialsError


async def publish_a_policy(client):
    await client.publish("tmrl.r.p", b"x")
    await asyncio.Event().wait()


async def publish_signs_of_life(client):
    while True:
        await client.publish("tmrl.r.b.arena.w", b"x")
        await asyncio.sleep(0.05)


def ending(options, attend=publish_a_policy):
    """Wait until a connection fails, and return its error."""
    failed = threading.Event()
    connection = EngineConnection(options, attend, failed.set)
    assert failed.wait(20)
    with pytest.raises(Exception) as error:
        connection.check()
    connection.close(0.0)
    return error.value


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="freezes processes")
def test_it_goes_on_when_a_node_freezes_and_is_back(node, caplog):
    heard = []

    async def attend(client):
        await hear(client, "tmrl.r.b.arena.>", heard.append)
        await asyncio.Event().wait()

    connection = EngineConnection(node.options("r", "gpu"), attend)
    site = EngineConnection(node.options("r", "arena"), publish_signs_of_life)
    until(lambda: heard)
    node.processes[0].send_signal(signal.SIGSTOP)
    # the connection does not wait for an orderly end, for which nats-py would take 30 s
    until(lambda: not connection.connected)
    node.processes[0].send_signal(signal.SIGCONT)
    heard.clear()
    until(lambda: heard)
    site.close(0.0)
    connection.check()
    connection.close(0.0)
    connection.close(0.0)
    assert "Traceback" not in caplog.text


def be_one_sided(listening, is_mute):
    """Accept one client as a node does, but then answer no requests, and send messages until
    `is_mute`.
    """
    info = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'
    with listening, listening.accept()[0] as line, contextlib.suppress(OSError):
        line.sendall(info)
        while b"PING" not in line.recv(65536):
            pass
        line.sendall(b"PONG\r\n")
        while not is_mute.wait(0.02):
            line.sendall(b"MSG tmrl.r.p 1 1\r\nx\r\n")
        while line.recv(65536):
            pass


def test_a_node_whose_answers_lie_behind_a_backlog_is_not_given_up():
    """The connection is kept as long as anything arrives: a new trainer has much to read, slowly on
    a busy machine.
    """
    clients, is_mute = [], threading.Event()
    listening = socket.create_server(("localhost", 0))
    url = f"nats://localhost:{listening.getsockname()[1]}"
    threading.Thread(target=be_one_sided, args=(listening, is_mute), daemon=True).start()

    async def attend(client):
        clients.append(client)
        await hear(client, "tmrl.r.p", lambda message: None)
        await asyncio.Event().wait()

    connection = EngineConnection(EngineOptions(nodes=(url,), run="r"), attend, ping_s=0.1)
    until(lambda: clients)
    time.sleep(1.0)
    assert connection.connected
    is_mute.set()
    until(lambda: not connection.connected, within_s=5.0)
    connection.close(0.0)


async def fail(client):
    raise IndexError


async def hear_and_fail(client):
    await hear(client, "tmrl.r.p", lambda message: [][0])
    await publish_a_policy(client)


@pytest.mark.parametrize("attend", [fail, hear_and_fail])
def test_what_fails_in_its_thread_raises_in_its_owner(node, attend):
    user = node.user("gpu", {"pub": ["tmrl.r.p"], "sub": ["tmrl.r.p"]})
    assert isinstance(ending(node.options("r", user), attend), IndexError)


def test_what_fails_is_raised_before_its_loop_has_ended(node):
    raised, beside = threading.Event(), []

    async def lose_cancellations():
        while not raised.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    async def fail_beside_it(client):
        beside.append(asyncio.ensure_future(lose_cancellations()))
        await asyncio.sleep(0)
        raise IndexError

    connection = EngineConnection(node.options("r", "gpu"), fail_beside_it, raised.set)
    was_raised = raised.wait(10)
    raised.set()
    connection.close(0.0)
    assert was_raised


def test_the_late_end_of_an_earlier_client_does_not_end_the_next_one(node):
    clients, undisturbed = [], threading.Event()

    async def attend(client):
        clients.append(client)
        if len(clients) == 1:
            raise OSError("it is given up")
        await clients[0]._closed_cb()
        await asyncio.sleep(0.1)
        undisturbed.set()
        await asyncio.Event().wait()

    connection = EngineConnection(node.options("r", "gpu"), attend)
    until(lambda: undisturbed.is_set() or len(clients) > 2)
    connection.close(0.0)
    assert len(clients) == 2


def test_a_flush_comes_after_all_that_was_said_before_it():
    said, hung_up = [], asyncio.Event()

    async def be_node(reader, writer):
        writer.write(b'INFO {"max_payload": 1048576}\r\n')
        async for line in reader:
            said.append(line.split()[0])
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()
        hung_up.set()

    async def act():
        async with await asyncio.start_server(be_node, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = NodeClient(None)
            await client.connect(f"nats://127.0.0.1:{port}")
            await client.subscribe("a")
            await client.flush()
            assert b"PING" in said[said.index(b"SUB") :]
            await client.close()
            await hung_up.wait()

    asyncio.run(act())


def test_what_is_said_last_arrives(node):
    heard, listening = [], threading.Event()

    async def listen(client):
        await hear(client, "tmrl.r.p", lambda message: heard.append(message.data))
        await client.flush()
        listening.set()
        await asyncio.Event().wait()

    async def say(client):
        await client.publish("tmrl.r.p", b"last words")

    listener = EngineConnection(node.options("r", "arena"), listen)
    assert listening.wait(20)
    EngineConnection(node.options("r", "gpu"), say).close()
    until(lambda: heard == [b"last words"])
    listener.close(0.0)


def test_who_is_no_user_of_the_engine_reads_so_in_one_line(node, tmp_path):
    stranger = Nodes(tmp_path / "other").user("arena")
    assert re.search(
        r"the engine at nats://localhost:\d+ refuses the user arena of .*arena.creds: check "
        r"server.engine_credentials",
        str(ending(node.options("r", stranger))),
    )
    assert "refuses users without credentials: check server.engine_credentials" in str(
        ending(node.options("r"))
    )


def test_who_is_refused_while_a_node_is_away_tries_on(node, caplog, tmp_path):
    stranger = str(Nodes(tmp_path / "other").user("arena"))
    nodes = (node.urls[0], f"nats://localhost:{free_ports(1)[0]}")
    connection = EngineConnection(
        EngineOptions(nodes=nodes, run="r", credentials=stranger), publish_a_policy
    )
    until(lambda: "refuses the user arena" in caplog.text)
    connection.close(0.0)


def test_nodes_that_take_small_messages_only_end_it(tmp_path):
    with Nodes(tmp_path, is_open=True, more="max_payload: 64KB") as nodes:
        error = ending(nodes.options("r"))
    assert isinstance(error, ConfigError)
    assert (
        "take messages of 65,536 bytes at most, expected 1,048,576 or more: set max_payload"
        in str(error)
    )


def test_a_file_that_is_none_of_credentials_is_one_line(tmp_path):
    path = tmp_path / "x.creds"
    options = EngineOptions(nodes=("nats://localhost",), run="r", credentials=str(path))
    whole = Nodes(tmp_path).user("gpu").read_text()
    half = whole[: whole.index("------END USER NKEY")]
    for content, problem in (
        (None, "cannot read the engine's credentials .*x.creds: No such file"),
        ("", r"x\.creds is no file of credentials: expected a user's JWT and its key"),
        (half, r"x\.creds is no file of credentials"),
        ("\xff", r"x\.creds is no file of credentials"),
    ):
        if content is not None:
            path.write_text(content, encoding="latin-1")
        with pytest.raises(CredentialsError, match=problem):
            EngineConnection(options, publish_a_policy)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a file that is another one at each look")
def test_at_each_dial_jwt_and_key_are_of_one_user_though_the_file_is_replaced(node, tmp_path):
    path, draft = tmp_path / "rotating.creds", tmp_path / "draft"
    users = [node.user("gpu").read_text() for _ in range(2)]
    assert users[0] != users[1]

    def rotate():
        for user in itertools.cycle(users):
            with path.open("w") as pipe:  # blocks until a reader opens it
                os.mkfifo(draft)
                draft.replace(path)
                pipe.write(user)

    os.mkfifo(path)
    threading.Thread(target=rotate, daemon=True).start()
    connection = EngineConnection(node.options("r", path), publish_a_policy)
    until(lambda: connection.connected or connection.check())
    connection.close(0.0)


def test_a_file_that_is_being_written_at_a_dial_is_read_at_the_next(node, caplog):
    path = node.user("gpu")
    content = path.read_text()
    node.kill(0)
    connection = EngineConnection(node.options("r", path), publish_a_policy)
    path.write_text("")
    node.start(0)
    until(lambda: "is no file of credentials" in caplog.text)
    path.write_text(content)
    until(lambda: connection.connected)
    connection.check()
    connection.close(0.0)


def test_a_certificate_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "ca.crt").touch()
    for name in ("ca.crt", "nonesuch.crt"):
        options = EngineOptions(nodes=("tls://localhost",), run="r", ca=str(tmp_path / name))
        with pytest.raises(ConfigError, match=f"cannot read the engine's certificate .*{name}"):
            EngineConnection(options, publish_a_policy)


def test_tls_is_with_the_nodes_that_the_certificate_is_of_and_never_left_out(tmp_path):
    ca, other = certificate(tmp_path / "own"), certificate(tmp_path / "other")
    files = f'cert_file: "{ca}", key_file: "{ca.removesuffix("crt")}key"'
    heard = threading.Event()

    async def attend(client):
        heard.set()

    with Nodes(tmp_path / "nodes", is_open=True, more=f"tls {{ {files} }}") as nodes:
        url = nodes.urls[0].replace("nats:", "tls:")
        EngineConnection(EngineOptions(nodes=(url,), run="r", ca=ca), attend).close()
        assert heard.is_set()
        error = ending(EngineOptions(nodes=(url,), run="r", ca=other))
    assert isinstance(error, CredentialsError)
    assert re.search(r"what listens at tls://localhost:\d+ has no trusted certificate", str(error))


def test_who_answers_in_the_clear_where_tls_is_asked_for_hears_nothing_of_us(node, caplog):
    attended = threading.Event()

    async def attend(client):
        attended.set()

    options = EngineOptions(
        nodes=(node.urls[0].replace("nats:", "tls:"),), run="r", credentials=str(node.user("gpu"))
    )
    connection = EngineConnection(options, attend)
    until(lambda: "it offers no encryption, and tls:// was asked for" in caplog.text)
    connection.close(0.0)
    assert not attended.is_set()


def test_it_ends_at_once_where_nobody_answers():
    with socket.create_server(("localhost", 0)) as mute:
        options = EngineOptions(nodes=(f"nats://localhost:{mute.getsockname()[1]}",), run="r")
        connection = EngineConnection(options, publish_a_policy)
        mute.settimeout(20)
        with mute.accept()[0]:
            connection.close(0.0)
    assert "tmrl-engine" not in [thread.name for thread in threading.enumerate()]
