"""Particulars of the tlspyo transport: its connections, its passwords, its thread."""

from __future__ import annotations

import gc
import os
import socket
from types import SimpleNamespace

import OpenSSL
import pytest
from kit.pythons import python

from tmrl_like.transport import TransportOptions, connect
from tmrl_like.transport.credentials import _curve_pair
from tmrl_like.transport.over_tlspyo import (
    PASSWORD_BYTES,
    Connection,
    ServerConnection,
    TlspyoLink,
    password_of,
)

from .exchange import introduce, receive_at, send_of, until
from .rawclient import RawPeer, closes


class Alone(Connection):
    """A connection without a network. `sent`: the data written; `reads`: whether it reads arriving
    data.
    """

    def __init__(self):
        super().__init__(TlspyoLink(TransportOptions(max_message_bytes=1000, queue_messages=10)))
        self.transport, self.sent, self.reads = self, [], True

    def send_obj(self, obj):
        self.sent.append(obj)

    def pauseProducing(self):
        self.reads = False

    def resumeProducing(self):
        self.reads = True


@pytest.fixture
def alone(monkeypatch):
    at_once = SimpleNamespace(callFromThread=lambda call: call())
    monkeypatch.setattr("tmrl_like.transport.over_tlspyo.running_reactor", lambda: at_once)
    return Alone()


@pytest.mark.parametrize("size", [1, 1000])
def test_nothing_is_read_while_too_much_waits_to_be_received(alone, size):
    """At most ten messages may wait, or four of the largest size."""
    room = min(10, 4000 // size)
    for _ in range(room):
        assert alone.reads
        alone.arrive(memoryview(bytes(size)))
    assert not alone.reads
    for received in range(1, room + 1):
        assert len(alone.receive()) == size
        assert alone.reads == (received > room / 2)


@pytest.mark.parametrize("size", [1, 1000])
def test_nothing_is_written_while_what_was_written_has_not_left(alone, size):
    room = min(10, 4000 // size)
    Connection.pauseProducing(alone)
    assert [alone.hand_over(bytes(size)) for _ in range(room + 2)] == [True] * room + [False] * 2
    assert not alone.sent
    Connection.resumeProducing(alone)
    assert len(alone.sent) == room
    assert alone.hand_over(b"")


def test_nothing_piles_up_while_the_server_is_away(tls):
    server = tls.listen()
    server.close()
    peer = tls.connect(server)
    assert not peer.send(b"too early")
    server = tls.listen(server.address[1])
    introduce(server, peer)
    server.close()
    until(lambda: not peer.send(bytes(1000)))
    server = tls.listen(server.address[1])
    send_of(peer, b"fresh")
    until(lambda: receive_at(server).data == b"fresh")


def test_a_link_that_is_closed_at_once_leaves_no_connection(tls):
    patient = TransportOptions(handshake_timeout_s=600, silent_after_s=600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = connect("tlspyo", *listener.getsockname(), tls.keys, patient)
        connection = listener.accept()[0]
        peer.close()
        with connection:
            assert closes(connection, 20)


@pytest.mark.parametrize("heartbeat_s", [0.1, 0.5])
def test_an_idle_link_stays(tls, heartbeat_s):
    options = TransportOptions(heartbeat_s=heartbeat_s, silent_after_s=0.4)
    server = tls.listen(options=options)
    peer = tls.connect(server, options=options)
    connection = introduce(server, peer)
    assert server.receive(0.9) is None
    assert server.send(connection, b"still there")
    assert peer.receive(5) == b"still there"


@pytest.mark.fault("peers", "a peer is killed", "the server keeps nothing of its connection")
def test_nothing_is_kept_of_a_connection_that_broke_whether_garbage_is_collected_or_not(service):
    def connections():
        kinds = (OpenSSL.SSL.Connection, ServerConnection)
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    gc.collect()
    before = connections()
    gc.disable()
    try:
        for _ in range(5):
            RawPeer(service).join().close()
        until(lambda: connections() <= before, "the end of five connections")
    finally:
        gc.enable()
    service.assert_unharmed()


def test_only_the_holder_of_a_secret_has_its_password():
    (server, server_secret), (public, secret), (other, other_secret) = (
        _curve_pair() for _ in range(3)
    )
    password = password_of(public, server, server_secret)
    assert len(password) == PASSWORD_BYTES
    assert password_of(public, server, secret) == password
    assert password_of(public, server, other_secret) != password
    assert password_of(public, other, other_secret) != password
    assert password_of(other, server, server_secret) != password


FORKED = """
import os, sys
from pathlib import Path
from tmrl_like.errors import TransportError
from tmrl_like.transport import KeyFolder, listen
keys = KeyFolder(Path(sys.argv[1]))
listen("tlspyo", "127.0.0.1", 0, keys).close()
if os.fork() == 0:
    try:
        listen("tlspyo", "127.0.0.1", 0, keys)
    except TransportError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_the_error_after_a_fork_says_what_to_do_instead(tls):
    said, _ = python("-c", FORKED, tls.keys.path)
    assert '"spawn"' in said
