"""Who gets in, who does not, and that nobody does harm from outside."""

from __future__ import annotations

import ast
import json
import logging
import os
import pickle
import random
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import psutil
import pytest
from link_proxy import LinkProxy

import tmrl_like
from tmrl_like.errors import CredentialsError, DecodingError
from tmrl_like.transport import Identity, TransportOptions
from tmrl_like.transport.credentials import _curve_pair
from tmrl_like.transport.over_tlspyo import GROUP
from tmrl_like.wire import messages
from tmrl_like.wire.packet import decode_body

from .exchange import introduce, receive_at, receive_of, send_of, until
from .rawclient import RawPeer, closes, trust_all

SOON_S = 60.0
MEGABYTE = 1 << 20


def refusal_of(peer, within_s=SOON_S):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            assert peer.receive(0.2) is None
        except CredentialsError as error:
            return str(error)
    raise AssertionError(f"no CredentialsError within {within_s:g} s")


def assert_unharmed(machines, server):
    introduce(server, machines.connect(server))


# keys


def test_an_invited_machine_gets_in_with_the_roles_it_was_given(machines):
    server = machines.listen()
    peer = machines.connect(server, machines.machine("car-7", ("worker",)))
    send_of(peer, b"hello")
    assert receive_at(server).identity == Identity("car-7", ("worker",))


@pytest.mark.usefixtures("hasty")
def test_a_key_for_another_server_is_an_error_at_the_peer(machines):
    server = machines.listen()
    peer = machines.connect(server, machines.stranger())
    assert "not the server that this machine's key is for" in refusal_of(peer)
    assert server.receive(0.1) is None
    assert_unharmed(machines, server)


def test_a_key_that_the_server_does_not_know_is_refused(machines, caplog):
    server = machines.listen()
    public, secret = _curve_pair()
    folder = machines.altered("forged", curve_public=public, curve_secret=secret)
    with caplog.at_level(logging.WARNING):
        for peer in [machines.connect(server, folder) for _ in range(2)]:
            assert "keys invite" in refusal_of(peer)
        until(lambda: "refused a connection" in caplog.text)
    assert server.receive(0.1) is None
    assert caplog.text.count("refused a connection") == 1
    assert_unharmed(machines, server)


def test_a_known_public_key_without_its_secret_is_refused(machines):
    server = machines.listen()
    folder = machines.altered("thief", curve_secret=_curve_pair()[1])
    peer = machines.connect(server, folder)
    if machines.transport == "tlspyo":
        refusal_of(peer)
    assert server.receive(0.5) is None
    assert_unharmed(machines, server)


@pytest.mark.fault("peers", "a key is revoked", "it does not get in, and what it has open ends")
def test_a_revoked_key_does_not_get_in(machines):
    folder = machines.machine("lost-laptop")
    machines.keys.revoke("lost-laptop")
    server = machines.listen()
    assert "refuses this machine's key" in refusal_of(machines.connect(server, folder))
    assert server.receive(0.1) is None


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


@pytest.mark.usefixtures("hasty")
def test_changed_roles_are_known_without_a_new_connection(machines):
    server = machines.listen()
    peer = machines.connect(server, machines.machine("desk"))
    introduce(server, peer)
    file = machines.keys.path / "authorized" / "desk.json"
    entry = json.loads(file.read_text().replace("worker", "trainer"))
    del entry["crc32"]  # as whoever edits it does
    file.write_text(json.dumps(entry))

    def roles():
        peer.send(b"hello")
        message = server.receive(0.1)
        return message.identity.roles if message else ()

    until(lambda: roles() == ("trainer",))


@pytest.mark.fault("people", "somebody damages one peer's key file", "the others get in")
def test_a_damaged_key_file_of_one_peer_does_not_lock_the_others_out(machines):
    server = machines.listen()
    introduce(server, machines.connect(server))
    (machines.keys.path / "authorized" / "broken.json").write_text("{")
    introduce(server, machines.connect(server))


@pytest.mark.parametrize("key", ["", "short", "é" * 40, "~" * 40])
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
    """It accepts connections and drops them: the server may come yet."""
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
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "pickle": pickle.dumps(["x"] * 100),
    "tls records": b"\x16\x03\x01\x3f\xff" + bytes(9000),
    "nothing": b"",
}


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


@pytest.mark.fault("peers", "a stranger connects and never speaks", "the connection is dropped")
def test_a_connection_that_never_speaks_is_dropped(machines):
    server = machines.listen(options=TransportOptions(handshake_timeout_s=0.3, heartbeat_s=0.1))
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(server.address)) for _ in range(20)]
        for sock in sockets:
            assert closes(sock)
    assert_unharmed(machines, server)


def test_a_tls_connection_that_says_no_password_is_dropped(tls):
    server = tls.listen(options=TransportOptions(handshake_timeout_s=0.3, heartbeat_s=0.1))
    for said in (b"", b"5", b"0         " + b"x" * 200):
        with trust_all().wrap_socket(socket.create_connection(server.address)) as sock:
            sock.sendall(said)
            assert closes(sock)


@pytest.mark.fault("peers", "a stranger announces a terabyte", "nothing is allocated for it")
def test_a_zmtp_frame_of_a_terabyte_is_not_believed(machines_for):
    machines = machines_for("zmq")
    server = machines.listen(options=TransportOptions(handshake_timeout_s=1))
    greeting = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
    before = _rss()
    for flags in (b"\x02", b"\x06"):
        with socket.create_connection(server.address) as sock:
            sock.sendall(greeting + flags + (1 << 40).to_bytes(8, "big") + bytes(1 << 16))
            assert closes(sock)
    assert _rss() - before < 20 * MEGABYTE
    assert_unharmed(machines, server)


# what somebody at the other end of a TLS connection may not do


def test_without_a_password_nothing_is_read(service):
    with closing(RawPeer(service)) as rogue:
        rogue.password = rogue.password[:-1] + ("0" if rogue.password[-1] != "0" else "1")
        with pytest.raises(ConnectionError):
            rogue.join()
        for _ in range(100):
            rogue.write(bytes(MEGABYTE))
    service.assert_unharmed()


@pytest.mark.parametrize("destination", [{"peers": -1}, {"peers": 1}, {"server": 5}, {}, None])
def test_a_peer_cannot_reach_other_peers(service, destination):
    with closing(RawPeer(service).join()) as rogue:
        rogue.say("OBJ", destination, b"from a rogue")
        assert receive_at(service.server).data == b"from a rogue"
    service.assert_unharmed()


def test_a_peer_has_one_seat_and_one_group(service):
    with closing(RawPeer(service)) as rogue:
        rogue.say("HELLO", None, ["server"])
        assert rogue.closed()
    with closing(RawPeer(service).join()) as rogue:
        rogue.say("HELLO", None, [GROUP])
        assert rogue.closed()
    service.assert_unharmed()


@pytest.mark.parametrize("said", [None, "text", ("group",), 1, {}], ids=str)
def test_what_is_no_message_cuts_its_own_connection_only(service, said):
    with closing(RawPeer(service).join()) as rogue:
        rogue.say("OBJ", None, said)
        assert rogue.closed()
    service.assert_unharmed()


@pytest.mark.parametrize("size", [MEGABYTE + 1, 2 * MEGABYTE])
def test_too_large_a_message_cuts_its_own_connection_only(service, size):
    with closing(RawPeer(service).join()) as rogue:
        rogue.say("OBJ", None, bytes(size))
        assert rogue.closed()
    service.assert_unharmed()


@pytest.mark.fault("peers", "malformed messages, in masses", "they are refused; the server's memory stays flat")
def test_ten_thousand_malformed_envelopes_leave_the_server_as_it_was(service):
    rng = random.Random(1)
    said = [rng.randbytes(rng.randrange(40)) for _ in range(200)]

    def misbehave(times):
        for i in range(times):
            with closing(RawPeer(service)) as rogue:
                for envelope in said[i % 100 :][:100]:
                    rogue.say_bytes(envelope)
                assert rogue.closed()

    misbehave(20)
    before = _rss()
    misbehave(100)
    assert _rss() - before < 20 * MEGABYTE
    service.assert_unharmed()


# parsers


def _lying_packet(body):
    numbers = {field.name: 1 for field in msgspec.structs.fields(messages.SamplePacket) if field.required}
    lies = {"worker": "w", "samples": 3, "body_bytes": len(body), "compressed": False}
    return messages.SamplePacket(**numbers | lies)


def _headed(data):
    return len(data).to_bytes(4, "little") + data


# nothing is unpickled


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.fault("peers", "a pickle in place of a message", "it is never executed")
def test_a_pickle_is_never_executed(machines, tmp_path):
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(mark))
    server = machines.listen()
    peer = machines.connect(server)
    introduce(server, peer)
    send_of(peer, bomb)
    data = receive_at(server).data
    with pytest.raises(DecodingError):
        messages.decode(data)
    assert server.send(introduce(server, peer), bomb)
    with pytest.raises(DecodingError):
        messages.decode(receive_of(peer))
    for body in (bomb, _headed(bomb)):
        with pytest.raises(DecodingError):
            decode_body(_lying_packet(body), body)
    assert not mark.exists()


def test_a_pickle_in_place_of_tlspyos_own_is_never_executed(service, tmp_path):
    mark = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(mark))
    with closing(RawPeer(service)) as stranger, closing(RawPeer(service).join()) as rogue:
        stranger.say_bytes(bomb)
        rogue.say_bytes(bomb)
        assert stranger.closed()
        assert rogue.closed()
    with closing(RawPeer(service).join()) as rogue:
        rogue.say("OBJ", None, bomb)
        assert receive_at(service.server).data == bomb
    service.assert_unharmed()
    assert not mark.exists()


UNPICKLERS = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "jsonpickle"}


def test_the_package_has_nothing_that_unpickles():
    for file in sorted(Path(tmrl_like.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names = {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {(node.module or "").partition(".")[0], *(alias.name for alias in node.names)}
            else:
                names = set()
            assert not names & UNPICKLERS, f"{file}:{node.lineno} imports {names & UNPICKLERS}"
            if isinstance(node, ast.Call):
                _check_call(node, file)


def _check_call(node, file):
    keywords = {k.arg: k.value for k in node.keywords}
    where = f"{file}:{node.lineno}"
    if ast.unparse(node.func) in ("torch.load", "torch.jit.load"):
        safe = keywords.get("weights_only")
        assert isinstance(safe, ast.Constant), where
        assert safe.value is True, where
    allow = keywords.get("allow_pickle")
    assert allow is None or (isinstance(allow, ast.Constant) and allow.value is False), where


def _rss():
    return psutil.Process().memory_info().rss


class _Http:
    """Answers everybody as a web server would, and a knock as a busy one."""

    def __init__(self, listener):
        self.address = listener.getsockname()[:2]
        self._listener = listener
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                with connection:
                    connection.settimeout(0.3)
                    with suppress(OSError):
                        if connection.recv(1000).startswith(b"\r\n"):
                            time.sleep(1.5)
                    with suppress(OSError):
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
