"""Admission of peers, and protection against harm from outside."""

import os
import pickle
import random
import socket
import socketserver
import threading
from contextlib import ExitStack, closing, suppress

import pytest
from kit.allocations import memory_of
from kit.packets import header
from link_proxy import LinkProxy

from tmrl_like.errors import CredentialsError, DecodingError
from tmrl_like.transport import Identity, TransportOptions
from tmrl_like.transport.over_tlspyo import GROUP
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import decode_body

from .exchange import introduce, receive_at, send_of, until
from .rawclient import RawPeer, closes

MEGABYTE = 1 << 20
HASTY = TransportOptions(gives_up_after_s=0.1)


def refusal_of(peer):
    with pytest.raises(CredentialsError) as refused:
        until(lambda: peer.receive(0.2), "a refusal")
    return str(refused.value)


@pytest.fixture
def server(machines):
    """A server; check afterwards that nothing unwanted has arrived, and that others are served."""
    patient = {"heartbeat_s": 600.0, "silent_after_s": 6000.0}
    server = machines.listen(options=TransportOptions(handshake_timeout_s=1.0, **patient))
    yield server
    assert server.receive(0.3) is None
    introduce(server, machines.connect(server))


# keys


def test_an_invited_machine_gets_in_with_the_roles_it_was_given(machines, server):
    peer = machines.connect(server, machines.machine("car-7", ("worker",)))
    send_of(peer, b"hello")
    assert receive_at(server).identity == Identity("car-7", ("worker",))


@pytest.mark.fault("peers", "a key is revoked", "it does not get in, and what it has open ends")
def test_a_key_that_the_server_does_not_know_is_refused(machines, server, caplog):
    folder = machines.machine("revoked")
    machines.keys.revoke("revoked")
    for _ in range(2):
        assert "refuses this machine's key" in refusal_of(machines.connect(server, folder))
    until(lambda: "refused a connection" in caplog.text)
    assert caplog.text.count("refused a connection") == 1


def test_a_key_for_another_server_is_an_error_at_the_peer(machines, server):
    said = refusal_of(machines.connect(server, machines.stranger(), HASTY))
    assert "not the server that this machine's key is for" in said


def test_a_known_public_key_without_its_secret_is_refused(machines, server):
    secret = machines.stranger().server_keys().curve_secret
    peer = machines.connect(server, machines.altered("thief", curve_secret=secret))
    if machines.transport == "tlspyo":
        refusal_of(peer)


def test_a_key_revoked_while_it_is_connected_is_not_listened_to_any_more(machines):
    server = machines.listen()
    friend = machines.connect(server)
    peer = machines.connect(server, machines.machine("lost-laptop"))
    introduce(server, friend)
    introduce(server, peer)
    machines.keys.revoke("lost-laptop")

    def is_heard():
        peer.send(b"still here?")
        message = server.receive(0.05)
        return message is not None and message.identity.roles

    until(lambda: not any(is_heard() for _ in range(20)))
    until(lambda: server.receive(0.05) is None)
    introduce(server, friend)


@pytest.mark.parametrize("key", ["short", "é" * 40, f"{40 * 'a'}\n"])
def test_a_key_that_is_none_is_an_error_at_once(tls, key):
    with pytest.raises(CredentialsError, match=r"peer\.json is damaged"):
        tls.altered("damaged", curve_secret=key).peer_keys()


class WebServer(socketserver.ThreadingTCPServer):
    """Answers what it does not understand, as a web server would."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), None)
        self.address, self.answers = self.server_address, 0

    def finish_request(self, request, client_address):
        request.settimeout(0.3)
        self.answers += 1
        with suppress(OSError):
            request.recv(1000)
            request.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.fixture
def web():
    with WebServer() as web:
        threading.Thread(target=web.serve_forever, args=(0.01,)).start()
        yield web
        web.shutdown()


def test_something_else_that_answers_at_the_address_is_an_error(machines, web):
    assert "not the server" in refusal_of(machines.connect(web, options=HASTY))


def test_one_strange_answer_may_be_a_forwarder_s_and_is_not_taken_for_another_server(machines, web):
    peer = machines.connect(web, options=HASTY)
    until(lambda: peer.receive(0.01) or web.answers >= 2)


def test_a_forwarder_whose_server_is_away_is_not_taken_for_another_server(machines):
    """It accepts connections and drops them, because the server may still come."""
    with LinkProxy("127.0.0.1", 1) as forwarder:
        peer = machines.connect(forwarder, options=HASTY)
        until(lambda: peer.receive(0.2) or forwarder.accepted >= 8)
        assert peer.receive(0.0) is None


# other protocols

STRANGE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3,
    random.Random(0).randbytes(5000),
    b"\x16\x03\x01\x3f\xff" + bytes(9000),  # TLS records
    b"",
)


@pytest.mark.fault("peers", "a stranger connects and never speaks", "the connection is dropped")
def test_other_protocols_are_turned_away_and_do_no_harm(server):
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(server.address, timeout=60))
            for _ in range(5 * len(STRANGE))
        ]
        for sock, data in zip(sockets, STRANGE * 5, strict=True):
            with suppress(OSError):
                sock.sendall(data)
        assert all(map(closes, sockets))


# what the other end of a TLS connection must not be able to do


@pytest.fixture
def rogue(service):
    """Return a function that connects misbehaving peers; check afterwards that the server is
    unharmed.
    """
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(RawPeer(service)))
    service.assert_unharmed()


def test_a_peer_cannot_reach_other_peers(rogue, service):
    rogue().join().say("OBJ", {"peers": 1}, b"from a rogue")
    assert receive_at(service.server).data == b"from a rogue"


def test_a_peer_has_one_seat_and_one_group(rogue):
    for peer, group in ((rogue(), "server"), (rogue().join(), GROUP)):
        peer.say("HELLO", None, [group])
        assert peer.closed()


@pytest.mark.parametrize("said", [None, "text", bytes(MEGABYTE + 1)], ids=["none", "text", "large"])
def test_what_is_no_message_or_too_large_cuts_its_own_connection_only(rogue, said):
    peer = rogue().join()
    peer.say("OBJ", None, said)
    assert peer.closed()


@pytest.mark.parametrize("header", [b"abc       ", b"-1        ", b"9999999999"])
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
            with closing(rogue()) as peer:
                for envelope in said[i % 100 :][:100]:
                    peer.say_bytes(envelope)
                assert peer.closed()

    misbehave(20)
    before = memory_of()
    misbehave(100)
    assert memory_of() - before < 20 * MEGABYTE


# nothing is unpickled; the settings of ruff ban what would do so


@pytest.fixture
def bomb(tmp_path):
    """A pickle that makes a folder when loaded; check that it never was."""
    mark = tmp_path / "exploded"

    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    yield pickle.dumps(Bomb())
    assert not mark.exists()


@pytest.mark.fault("peers", "a pickle in place of a message", "it is never executed")
def test_a_pickle_is_never_executed(bomb):
    with pytest.raises(DecodingError):
        m.decode(bomb)
    for body in (bomb, len(bomb).to_bytes(4, "little") + bomb):
        with pytest.raises(DecodingError):
            decode_body(header(1, 3, body_bytes=len(body)), body)


def test_a_pickle_in_place_of_tlspyos_own_is_never_executed(rogue, service, bomb):
    for peer in (rogue(), rogue().join()):
        peer.say_bytes(bomb)
        assert peer.closed()
    rogue().join().say("OBJ", None, bomb)
    assert receive_at(service.server).data == bomb
