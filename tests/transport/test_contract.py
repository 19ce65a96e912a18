"""The guarantees of every transport, one test each; the same tests run for all transports."""

import errno
import math
import random
import socket
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from types import SimpleNamespace

import pytest
import zmq

from tmrl_like.errors import AddressInUseError, ConfigError, OversizeError
from tmrl_like.transport import KeyFolder, TransportOptions, connect, listen

from .exchange import introduce, receive_at, receive_of, send_of, until


@pytest.fixture(params=["zmq", "tlspyo", "inproc"])
def machines(request, machines_for):
    return machines_for(request.param)


@pytest.fixture
def pair(machines):
    """Return a function that makes a server and a peer whose connection works both ways, and
    returns both with the connection's id.
    """

    def make(**options):
        server = machines.listen(options=TransportOptions(**options))
        peer = machines.connect(server, options=TransportOptions(**options))
        return server, peer, introduce(server, peer)

    return make


def send_to(server, connection, data):
    until(lambda: server.send(connection, data), "a place for the server's message")


@pytest.mark.parametrize(
    "limits",
    [{"heartbeat_s": 0.02}, {"heartbeat_s": 4e4, "silent_after_s": 8e4}],
    ids=str,
)
def test_a_connection_works_with_any_limits_of_time(pair, limits):
    pair(**limits)


def test_messages_of_all_sizes_arrive_unchanged_and_in_order_both_ways(pair):
    server, peer, connection = pair()
    sizes = (0, 1, 255 * 1024, 300_000, 5_000_000, *range(4, 204))
    messages = [random.Random(size).randbytes(size) for size in sizes]
    for send, receive in (
        (lambda data: send_of(peer, data), lambda: bytes(receive_at(server).data)),
        (lambda data: send_to(server, connection, data), lambda: receive_of(peer)),
    ):
        for some in (*([message] for message in messages[:5]), messages[5:]):
            for message in some:
                send(message)
            assert [receive() for _ in some] == some


def test_receive_waits_as_long_as_asked_or_until_it_is_woken(pair):
    for link in pair()[:2]:
        began_at = time.monotonic()
        assert link.receive(0.2) is None
        assert time.monotonic() - began_at > 0.15
        waker = threading.Timer(0.1, link.wake)
        waker.start()
        assert link.receive(600.0) is None
        waker.join()


def test_a_message_to_nobody_is_not_taken(pair):
    server, peer, connection = pair()
    assert not server.send(b"\x00never-heard-of", b"data")
    peer.close()
    until(lambda: not server.send(connection, b"data"), "the server's `send` saying no")


@pytest.mark.parametrize("port", [-1, 65536, "80"])
@pytest.mark.parametrize("side", [listen, connect])
def test_a_port_that_does_not_exist_is_refused(tmp_path, side, port):
    with pytest.raises(ConfigError, match=f"port is {port!r}; expected .*0 to 65535"):
        side("inproc", "127.0.0.1", port, KeyFolder(tmp_path))


@pytest.mark.parametrize(
    ("limit", "value"), [("queue_messages", 2**31), ("silent_after_s", math.inf)]
)
def test_a_limit_that_no_transport_can_keep_is_refused(limit, value):
    with pytest.raises(ConfigError, match=f"{limit} is .*; expected .* to "):
        TransportOptions(**{limit: value})


def test_a_forgotten_peer_that_speaks_again_is_answered(pair):
    server, peer, connection = pair()
    server.forget(connection)
    send_of(peer, b"still here")
    assert server.send(receive_at(server).peer, b"good")
    assert receive_of(peer) == b"good"


def test_a_full_queue_says_no_and_loses_nothing_that_it_took(pair):
    server, peer, connection = pair(queue_messages=10)
    body = bytes(200_000)  # large, so that the system's own buffers fill soon
    for send, receive in (
        (peer.send, lambda: receive_at(server).data),
        (lambda data: server.send(connection, data), lambda: receive_of(peer)),
    ):
        taken = 0
        while send(taken.to_bytes(4, "big") + body):
            taken += 1
            assert taken < 2000
        for i in range(taken):
            assert receive()[:4] == i.to_bytes(4, "big")


@pytest.mark.parametrize("error", [MemoryError(), zmq.ZMQError(errno.ENOMEM)])
def test_memory_that_runs_out_costs_no_message_but_that_one(machines_for, monkeypatch, error):
    def short(*arguments):
        raise error

    machines = machines_for("zmq")
    server = machines.listen()
    one, other = (machines.connect(server) for _ in range(2))
    to_one, to_other = introduce(server, one), introduce(server, other)
    with monkeypatch.context() as patch:
        patch.setattr(server, "_send", short)
        assert not server.send(to_one, b"lost")
    assert server.send(to_other, b"for the other")
    assert receive_of(other) == b"for the other"


@pytest.mark.parametrize("limit", [1000, 3 << 20], ids=["in one frame", "in several frames"])
def test_a_message_above_the_limit_is_refused_by_the_sender(pair, limit):
    server, peer, connection = pair(max_message_bytes=limit)
    with pytest.raises(OversizeError):
        peer.send(bytes(limit + 1))
    with pytest.raises(OversizeError):
        server.send(connection, bytes(limit + 1))
    send_of(peer, bytes(limit))
    assert len(receive_at(server).data) == limit
    send_to(server, connection, bytes(limit))
    assert len(receive_of(peer)) == limit


@pytest.mark.parametrize("limit", [100_000, 3 << 20], ids=["in one frame", "in several frames"])
def test_a_message_above_the_limit_is_refused_by_the_receiver(machines, pair, limit):
    server, polite, connection = pair(max_message_bytes=limit)
    rude = machines.connect(server)
    introduce(server, rude)
    with suppress(OversizeError):  # of inproc, which has the limits of the server
        rude.send(bytes(limit + (1 << 20)))
    send_of(polite, b"polite")
    assert receive_at(server).data == b"polite"
    assert server.send(connection, b"well")
    assert receive_of(polite) == b"well"
    assert server.receive(0.3) is None


def test_both_ends_of_zmq_say_once_whose_message_is_above_their_limit(machines_for, caplog):
    machines, small = machines_for("zmq"), TransportOptions(max_message_bytes=2 << 20)
    server = machines.listen(options=small)
    peer = machines.connect(server)
    introduce(server, peer)
    for _ in range(2):
        send_of(peer, bytes(3 << 20))
    send_of(peer, b"small")
    assert receive_at(server).data == b"small"
    large = machines.listen()
    peer = machines.connect(large, options=small)
    connection = introduce(large, peer)
    send_to(large, connection, bytes(3 << 20))
    send_to(large, connection, b"small")
    assert receive_of(peer) == b"small"
    dropped = "is dropped: it has 3145728 bytes, and max_message_bytes is 2097152 here"
    assert [line.partition(";")[0] for line in caplog.messages] == [
        f"a message of local {dropped}",
        f"a message of the server at 127.0.0.1:{large.address[1]} {dropped}",
    ]


def hears_nothing(peer):
    assert peer.receive(0.01) is None
    return peer.is_lost


def test_peers_find_a_server_that_comes_later_or_again_and_know_when_it_is_away(machines):
    server = machines.listen()
    assert not machines.connect(server).is_lost
    server.close()
    peers = [machines.connect(server) for _ in range(2)]
    for _ in range(2):
        for peer in peers:
            until(lambda: hears_nothing(peer), "the loss of the connection")  # noqa: B023
        server = machines.listen(server.address[1])
        for peer in peers:
            introduce(server, peer)
            until(lambda: not hears_nothing(peer), "the connection")  # noqa: B023
        server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="others answer a dial that they cannot accept")
@pytest.mark.parametrize("transport", ["zmq", "tlspyo"])
def test_an_address_that_does_not_answer_is_dialled_again_and_again(machines_for, transport):
    machines = machines_for(transport)
    with ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):  # more than wait to be accepted; the system does not answer to others
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        server = SimpleNamespace(address=full.getsockname())
        peer = machines.connect(server, options=TransportOptions(handshake_timeout_s=0.2))
        until(lambda: hears_nothing(peer), "the peer noticing that nobody answers")


def test_the_ipv4_and_ipv6_addresses_of_a_name_are_dialled_in_turn(machines_for, monkeypatch):
    machines, dialled, connect = machines_for("zmq"), [], zmq.Socket.connect
    server = machines.listen()
    server.close()

    def dial(sock, where):
        if where.startswith("tcp"):
            dialled.append((sock.ipv6, time.monotonic()))
        connect(sock, where)

    monkeypatch.setattr(zmq.Socket, "connect", dial)
    peer = machines.connect(SimpleNamespace(address=("localhost", server.address[1])))
    until(lambda: hears_nothing(peer) and len(dialled) == 4)
    are_ipv6, times = zip(*dialled, strict=True)
    assert are_ipv6 == (False, True, False, True)
    assert times[-1] - times[0] > 0.8, "each dial may ask a name server"


def test_closing_twice_is_fine_and_frees_the_port_at_once(machines, pair):
    server, peer, _ = pair()
    for link in (peer, server, peer, server):
        link.close()
    assert machines.listen(server.address[1]).address == server.address


def test_a_taken_port_is_named(machines):
    server = machines.listen()
    with pytest.raises(AddressInUseError, match=str(server.address[1])):
        machines.listen(server.address[1])
