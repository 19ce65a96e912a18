"""Particulars of the tlspyo transport: its connections, its passwords, its thread."""

import gc
import os
import socket
from types import SimpleNamespace

import OpenSSL
import pytest
from kit.pythons import python

from tmrl_like.transport import TransportOptions, connect
from tmrl_like.transport.over_tlspyo import (
    Connection,
    ServerConnection,
    TlspyoLink,
)

from .exchange import introduce, until
from .rawclient import RawPeer, closes


class Network:
    """`reads`: whether the connection on it reads arriving data."""

    reads = True

    def pauseProducing(self):
        self.reads = False

    def resumeProducing(self):
        self.reads = True


class Alone(Connection):
    """A connection whose network is the test. `sent`: the data written."""

    def __init__(self):
        super().__init__(TlspyoLink(TransportOptions(max_message_bytes=1000, queue_messages=10)))
        self.transport, self.sent = Network(), []
        self.timeOut = 5.0

    def send_obj(self, obj):
        self.sent.append(obj)

    def setTimeout(self, period):
        self.timeOut = period


@pytest.fixture
def alone(monkeypatch):
    at_once = SimpleNamespace(callFromThread=lambda call: call())
    monkeypatch.setattr("tmrl_like.transport.over_tlspyo.running_reactor", lambda: at_once)
    return Alone()


@pytest.mark.parametrize(("size", "room"), [(1, 10), (1000, 4)])  # 10 messages, or 4 of the largest
def test_nothing_is_read_while_too_much_waits_to_be_received(alone, size, room):
    for _ in range(room):
        assert alone.transport.reads
        alone.arrive(memoryview(bytes(size)))
    assert not alone.transport.reads
    assert alone.timeOut is None, "what is not read is not silent"
    for received in range(1, room + 1):
        assert len(alone.receive()) == size
        assert alone.transport.reads == (received > room / 2)
    assert alone.timeOut == 5.0


@pytest.mark.parametrize(("size", "room"), [(1, 10), (1000, 4)])
def test_nothing_is_written_while_what_was_written_has_not_left(alone, size, room):
    alone.pauseProducing()
    assert [alone.hand_over(bytes(size)) for _ in range(room + 2)] == [True] * room + [False] * 2
    assert not alone.sent
    alone.resumeProducing()
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


def test_a_link_that_is_closed_at_once_leaves_no_connection(tls):
    patient = TransportOptions(handshake_timeout_s=600, silent_after_s=600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = connect("tlspyo", *listener.getsockname(), tls.keys, patient)
        connection = listener.accept()[0]
        peer.close()
        with connection:
            assert closes(connection, 20)


def test_an_idle_link_stays(tls):
    options = TransportOptions(heartbeat_s=0.5, silent_after_s=0.4)
    server = tls.listen(options=options)
    peer = tls.connect(server, options=options)
    connection = introduce(server, peer)
    assert server.receive(0.9) is None
    assert server.send(connection, b"still there")
    assert peer.receive(5) == b"still there"


def test_what_an_ended_connection_left_is_received_and_starts_no_time_out(alone):
    while alone.transport.reads:
        alone.arrive(memoryview(b"x"))
    alone.ended.callback(None)
    assert [bytes(alone.receive()) for _ in range(10)] == 10 * [b"x"]
    assert (alone.transport.reads, alone.timeOut) == (False, None)


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
