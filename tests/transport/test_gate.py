"""Limits for strangers at a server: few connections, little data, short stays."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from functools import partial
from types import SimpleNamespace

import pytest
import zmq
from kit.allocations import memory_of

from tmrl_like.transport import Identity, TransportOptions
from tmrl_like.transport.base import MAX_UNPROVED_CONNECTIONS, raise_descriptor_limit
from tmrl_like.transport.credentials import AuthorizedKeys

from .exchange import receive_at, until

# so that connections are never closed because of the time-out
PATIENT = TransportOptions(handshake_timeout_s=600)
LARGEST_FRAME_BYTES = (516 << 10) + 33  # that a server's libzmq accepts
ZMTP_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


@pytest.fixture
def crowd():
    """Return a function that connects many strangers to a server."""
    with ExitStack() as stack:
        yield lambda server, size: [
            stack.enter_context(socket.create_connection(server.address)) for _ in range(size)
        ]


@pytest.fixture
def dealer():
    """Return a function that makes minimal zmq peers, all in one context."""
    with zmq.Context() as context, ExitStack() as stack:

        def dial(server, keys, routing_id=None):
            sock = stack.enter_context(context.socket(zmq.DEALER))
            sock.linger = 0
            if routing_id:
                sock.routing_id = routing_id
            sock.curve_serverkey = keys.server_curve_public.encode()
            sock.curve_publickey = keys.curve_public.encode()
            sock.curve_secretkey = keys.curve_secret.encode()
            sock.connect("tcp://{}:{}".format(*server.address))
            sock.send(b"hello")
            return sock

        yield dial


def is_open(sock):
    """Whether the server has not closed a connection; drop what it has sent."""
    sock.setblocking(False)
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def test_a_crowd_ends_none_of_those_that_proved_their_keys(machines_for, crowd, dealer):
    machines = machines_for("zmq")
    server = machines.listen(options=PATIENT)
    keys = machines.keys.peer_keys()
    friends, peers = [], set()
    for _ in range(MAX_UNPROVED_CONNECTIONS + 10):
        friends.append(dealer(server, keys))
        peers.add(receive_at(server).peer)
    strangers = crowd(server, 2 * MAX_UNPROVED_CONNECTIONS)
    until(lambda: sum(map(is_open, strangers)) <= MAX_UNPROVED_CONNECTIONS)
    for friend in friends:
        friend.send(b"again")
    assert {receive_at(server).peer for _ in friends} == peers


def test_a_connection_is_its_own_keys_whatever_it_calls_itself(machines_for, dealer):
    """A zmq peer chooses its routing id, for example that of a trainer that has just left."""
    machines = machines_for("zmq")
    server = machines.listen()

    def heard(keys):
        """libzmq ignores a peer until the one before it of the same id is wholly gone."""
        with closing(dealer(server, keys, routing_id=b"seat one")):
            return server.receive(10.0)

    for folder in (machines.machine("gpu", ("trainer",)), machines.machine("car")):
        keys = folder.peer_keys()
        message = until(partial(heard, keys))
        assert message.peer == b"seat one"
        assert message.identity == Identity(keys.name, keys.roles)
        until(lambda: not server.send(b"seat one", b"gone?"))


ECHO_WITH_FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from tmrl_like.transport import KeyFolder, TransportOptions, listen
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
options = TransportOptions(handshake_timeout_s=600)
server = listen(sys.argv[1], "127.0.0.1", 0, KeyFolder(Path(sys.argv[2])), options)
print(server.address[1], flush=True)
while True:
    message = server.receive(1.0)
    if message is not None:
        server.send(message.peer, message.data)
"""


@pytest.fixture
def echo(machines):
    """A server in its own process, with 1,024 file descriptors."""
    arguments = [ECHO_WITH_FEW_DESCRIPTORS, machines.transport, machines.keys.path]
    command = [sys.executable, "-c", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            address = "127.0.0.1", int(program.stdout.readline())
            yield SimpleNamespace(process=program, address=address)
        finally:
            program.kill()


def joined(machines, server, name):
    """Connect another machine, and return its link, which works."""
    peer = machines.connect(server, machines.machine(name))
    assert_answered(peer)
    return peer


def assert_answered(peer):
    until(lambda: peer.send(b"still here?") and peer.receive(0.5))


@pytest.mark.fault(
    "peers", "more strangers than the server has descriptors", "nobody who has proved a key is cut"
)
@pytest.mark.skipif(os.name != "posix", reason="other systems have no such limit")
def test_more_strangers_than_descriptors_are_kept_few_and_end_nothing(machines, echo, crowd):
    raise_descriptor_limit()
    friend = joined(machines, echo, "early")
    strangers = crowd(echo, 2000)
    joined(machines, echo, "late")
    until(lambda: sum(map(is_open, strangers)) <= MAX_UNPROVED_CONNECTIONS)
    assert_answered(friend)
    assert echo.process.poll() is None


@pytest.mark.fault("peers", "a stranger announces a terabyte", "nothing is allocated for it")
@pytest.mark.fault(
    "peers",
    "a stranger sends megabytes before its handshake",
    "the server takes 64 MB for all strangers at most",
)
@pytest.mark.skipif(
    os.name != "posix", reason="the echo is for systems with a limit of descriptors"
)
@pytest.mark.parametrize("size", [LARGEST_FRAME_BYTES, 1 << 20, 1 << 40])
def test_what_strangers_send_takes_64_mb_at_most(machines, echo, crowd, size):
    """Twice as many strangers as allowed each send a frame without its last byte. libzmq allocates
    the announced size of a frame even before the handshake.
    """
    joined(machines, echo, "early")
    before = memory_of(echo.process.pid)
    for sock in crowd(echo, 2 * MAX_UNPROVED_CONNECTIONS):
        with suppress(OSError):
            sock.sendall(ZMTP_GREETING + b"\x06" + size.to_bytes(8, "big"))
            sock.sendall(bytes(min(size, 1 << 20) - 1))
    joined(machines, echo, "late")
    assert memory_of(echo.process.pid) - before < 64e6


def test_what_breaks_the_gate_surfaces_at_the_server(machines_for, monkeypatch):
    server = machines_for("zmq").listen()

    def fail(_):
        raise ZeroDivisionError

    monkeypatch.setattr(AuthorizedKeys, "refresh", fail)
    with pytest.raises(ZeroDivisionError):
        until(lambda: server.receive(0.1))
