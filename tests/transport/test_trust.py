"""Admission of peers, and protection against harm from outside."""

from __future__ import annotations

import ast
import logging
import os
import pickle
import random
import re
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest
from kit.allocations import memory_of
from link_proxy import LinkProxy

import tmrl_like
from tmrl_like.errors import CredentialsError, DecodingError
from tmrl_like.transport import Identity, TransportOptions
from tmrl_like.transport.credentials import _curve_pair
from tmrl_like.transport.over_tlspyo import GROUP
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body

from .exchange import introduce, receive_at, receive_of, send_of, until
from .rawclient import RawPeer, closes, trust_all

SOON_S = 60.0
MEGABYTE = 1 << 20


def refusal_of(peer):
    with pytest.raises(CredentialsError) as refused:
        until(lambda: peer.receive(0.2), "a refusal")
    return str(refused.value)


def assert_unharmed(machines, server):
    introduce(server, machines.connect(server))


# keys


def test_an_invited_machine_gets_in_with_the_roles_it_was_given(machines):
    server = machines.listen()
    peer = machines.connect(server, machines.machine("car-7", ("worker",)))
    send_of(peer, b"hello")
    assert receive_at(server).identity == Identity("car-7", ("worker",))


@pytest.mark.fault("peers", "a key is revoked", "it does not get in, and what it has open ends")
@pytest.mark.parametrize("key", ["forged", "revoked"])
def test_a_key_that_the_server_does_not_know_is_refused(machines, caplog, key):
    folder = machines.machine(key)
    if key == "forged":
        public, secret = _curve_pair()
        folder = machines.altered("another", curve_public=public, curve_secret=secret)
    else:
        machines.keys.revoke(key)
    server = machines.listen()
    with caplog.at_level(logging.WARNING):
        for peer in [machines.connect(server, folder) for _ in range(2)]:
            assert "refuses this machine's key" in refusal_of(peer)
        until(lambda: "refused a connection" in caplog.text)
    assert server.receive(0.1) is None
    assert caplog.text.count("refused a connection") == 1
    assert_unharmed(machines, server)


@pytest.mark.usefixtures("hasty")
def test_a_key_for_another_server_is_an_error_at_the_peer(machines):
    server = machines.listen()
    peer = machines.connect(server, machines.stranger())
    assert "not the server that this machine's key is for" in refusal_of(peer)
    assert server.receive(0.1) is None
    assert_unharmed(machines, server)


def test_a_known_public_key_without_its_secret_is_refused(machines):
    server = machines.listen()
    folder = machines.altered("thief", curve_secret=_curve_pair()[1])
    peer = machines.connect(server, folder)
    if machines.transport == "tlspyo":
        refusal_of(peer)
    assert server.receive(0.5) is None
    assert_unharmed(machines, server)


@pytest.mark.usefixtures("hasty")
def test_a_key_revoked_while_it_is_connected_is_not_listened_to_any_more(machines):
    server = machines.listen()
    friend = machines.connect(server)
    introduce(server, friend)
    peer = machines.connect(server, machines.machine("lost-laptop"))
    introduce(server, peer)
    machines.keys.revoke("lost-laptop")

    def roles():
        peer.send(b"still here?")
        message = server.receive(0.05)
        return message.identity.roles if message else ()

    until(lambda: not any(roles() for _ in range(20)), within_s=SOON_S)
    until(lambda: server.receive(0.05) is None)
    introduce(server, friend)


@pytest.mark.parametrize("key", ["short", "é" * 40, f"{40 * 'a'}\n"])
def test_a_key_that_is_none_is_an_error_at_once(machines, key):
    with pytest.raises(CredentialsError, match=r"peer\.json is damaged"):
        machines.connect(machines.listen(), machines.altered("damaged", curve_secret=key))


@pytest.mark.usefixtures("hasty")
def test_something_else_that_answers_at_the_address_is_an_error(machines):
    with socket.create_server(("127.0.0.1", 0)) as listener, closing(_Http(listener)) as http:
        peer = machines.connect(http)
        assert "not the server" in refusal_of(peer)


@pytest.mark.usefixtures("hasty")
def test_a_forwarder_whose_server_is_away_is_not_taken_for_another_server(machines):
    """It accepts connections and drops them, because the server may still come."""
    with LinkProxy("127.0.0.1", 1) as forwarder:
        peer = machines.connect(forwarder)
        until = time.monotonic() + 30
        while forwarder.accepted < 8 and time.monotonic() < until:
            assert peer.receive(0.2) is None
        assert forwarder.accepted >= 8


# other protocols

STRANGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
    "random bytes": random.Random(0).randbytes(5000),
    "tls records": b"\x16\x03\x01\x3f\xff" + bytes(9000),
    "nothing": b"",
}


@pytest.mark.fault("peers", "a stranger connects and never speaks", "the connection is dropped")
def test_other_protocols_are_turned_away_and_do_no_harm(machines):
    server = machines.listen(options=TransportOptions(handshake_timeout_s=1))
    sockets = []
    for data in STRANGE.values():
        for _ in range(5):
            sock = socket.create_connection(server.address, timeout=60)
            with suppress(OSError):
                sock.sendall(data)
            sockets.append(sock)
    for sock in sockets:
        assert closes(sock)
    for sock in sockets:
        sock.close()
    assert server.receive(0.1) is None
    assert_unharmed(machines, server)


def test_a_tls_connection_that_says_no_password_is_dropped(tls):
    patient = {"heartbeat_s": 600.0, "silent_after_s": 6000.0}
    server = tls.listen(options=TransportOptions(handshake_timeout_s=0.3, **patient))
    for said in (b"", b"5", b"0         " + b"x" * 200):
        with trust_all().wrap_socket(socket.create_connection(server.address)) as sock:
            sock.sendall(said)
            assert closes(sock)


# what the other end of a TLS connection must not be able to do


@pytest.fixture
def rogue(service):
    """Return a function that connects misbehaving peers; check afterwards that the server is
    unharmed.
    """
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(RawPeer(service)))
    service.assert_unharmed()


def test_without_a_password_nothing_is_read(rogue):
    peer = rogue()
    peer.password = peer.password[:-1] + ("0" if peer.password[-1] != "0" else "1")
    with pytest.raises(ConnectionError):
        peer.join()
    for _ in range(100):
        peer.write(bytes(MEGABYTE))


@pytest.mark.parametrize("destination", [{"peers": 1}, None])
def test_a_peer_cannot_reach_other_peers(rogue, service, destination):
    rogue().join().say("OBJ", destination, b"from a rogue")
    assert receive_at(service.server).data == b"from a rogue"


def test_a_peer_has_one_seat_and_one_group(rogue):
    for peer, group in ((rogue(), "server"), (rogue().join(), GROUP)):
        peer.say("HELLO", None, [group])
        assert peer.closed()


@pytest.mark.parametrize(
    "said",
    [None, "text", bytes(MEGABYTE + 1)],
    ids=lambda said: str(said)[:9],
)
def test_what_is_no_message_or_too_large_cuts_its_own_connection_only(rogue, said):
    peer = rogue().join()
    peer.say("OBJ", None, said)
    assert peer.closed()


@pytest.mark.parametrize(
    "header",
    [b"abc       ", b"-1        ", b"9999999999"],
)
def test_a_length_that_no_envelope_has_is_refused(rogue, header):
    peer = rogue().join()
    peer.write(header + peer.password.encode())
    assert peer.closed()


@pytest.mark.fault(
    "peers", "malformed messages, in masses", "they are refused; the server's memory stays flat"
)
def test_ten_thousand_malformed_envelopes_leave_the_server_as_it_was(rogue):
    rng = random.Random(1)
    said = [rng.randbytes(rng.randrange(40)) for _ in range(200)]

    def misbehave(times):
        for i in range(times):
            peer = rogue()
            for envelope in said[i % 100 :][:100]:
                peer.say_bytes(envelope)
            assert peer.closed()
            peer.close()

    misbehave(20)
    before = memory_of()
    misbehave(100)
    assert memory_of() - before < 20 * MEGABYTE


# nothing is unpickled


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.fixture
def bomb(tmp_path):
    """A pickle that makes a folder when loaded; check that it never was."""
    yield pickle.dumps(Bomb(tmp_path / "exploded"))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.fault("peers", "a pickle in place of a message", "it is never executed")
def test_a_pickle_is_never_executed(machines, bomb):
    server = machines.listen()
    peer = machines.connect(server)
    connection = introduce(server, peer)
    send_of(peer, bomb)
    at_server = receive_at(server).data
    assert server.send(connection, bomb)
    for data in (at_server, receive_of(peer)):
        with pytest.raises(DecodingError):
            m.decode(data)
    for body in (bomb, len(bomb).to_bytes(4, "little") + bomb):
        with pytest.raises(DecodingError):
            decode_body(m.SamplePacket("w", 1, 1, 3, 1, 0, 3, len(body), False), body)


def test_a_pickle_in_place_of_tlspyos_own_is_never_executed(rogue, service, bomb):
    for peer in (rogue(), rogue().join()):
        peer.say_bytes(bomb)
        assert peer.closed()
    rogue().join().say("OBJ", None, bomb)
    assert receive_at(service.server).data == bomb


UNPICKLERS = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "jsonpickle",
}


def test_the_package_has_nothing_that_unpickles():
    for file in sorted(Path(tmrl_like.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            where = f"{file}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                assert not UNPICKLERS.intersection(re.findall(r"\w+", ast.unparse(node))), where
            elif isinstance(node, ast.Call):
                said = {
                    k.arg: ast.unparse(k.value)
                    for k in node.keywords
                    if k.arg in ("allow_pickle", "weights_only")
                }
                assert said.get("allow_pickle", "False") == "False", where
                is_load = isinstance(node.func, ast.Attribute) and node.func.attr == "load"
                if is_load and ast.unparse(node.func) in ("torch.load", "torch.jit.load"):
                    assert said.get("weights_only") == "True", where


class _Http:
    """A server that answers every connection as a web server would, after a while."""

    def __init__(self, listener):
        self.address = listener.getsockname()[:2]
        self._listener = listener
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        with suppress(OSError):
            while True:
                with self._listener.accept()[0] as connection, suppress(OSError):
                    connection.settimeout(0.3)
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
