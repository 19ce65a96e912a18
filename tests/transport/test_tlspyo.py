"""What is particular to the tlspyo transport: its connections, its passwords, its thread."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_proxy import LinkProxy

from tmrl_like.errors import DecodingError, OversizeError, TransportError
from tmrl_like.transport import KeyFolder, TransportOptions, connect, listen
from tmrl_like.transport.credentials import _curve_pair
from tmrl_like.transport.tlspyo.connection import PIECE_BYTES, Assembler, cut, length_in
from tmrl_like.transport.tlspyo.password import PASSWORD_BYTES, password_of

from .conftest import Machines
from .exchange import introduce, receive_at, send_of, until
from .rawclient import closes

LIMIT = 8 * PIECE_BYTES
SIZES = st.one_of(st.integers(0, LIMIT), st.sampled_from([0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, LIMIT]))


@settings(max_examples=60)
@given(st.lists(SIZES, min_size=1, max_size=4))
def test_what_was_cut_comes_together_again(sizes: list[int]) -> None:
    assembler = Assembler(TransportOptions(max_message_bytes=LIMIT))
    for number, size in enumerate(sizes):
        data = bytes([number + 1]) * size
        results = [assembler.add(piece) for piece in cut(data)]
        assert results == [None] * (len(results) - 1) + [data]


@pytest.mark.parametrize("header", [b"          ", b"abc       ", b"-1        ", b"1.5       ", b"9999999999"])
def test_a_length_that_no_envelope_has_is_refused(header: bytes) -> None:
    with pytest.raises(DecodingError, match="an envelope with the length"):
        length_in(header)


def test_a_message_above_the_limit_is_refused_as_soon_as_it_is() -> None:
    assembler = Assembler(TransportOptions(max_message_bytes=LIMIT))
    *most, last = cut(bytes(LIMIT + 1))
    for piece in most:
        assert assembler.add(piece) is None
    with pytest.raises(OversizeError, match="at most"):
        assembler.add(last)


def test_an_address_of_another_machine_is_an_error(tls: Machines) -> None:
    with pytest.raises(TransportError, match=r"cannot listen on 203\.0\.113\.1"):
        listen("tlspyo", "203.0.113.1", 0, tls.keys)


def test_nothing_piles_up_while_the_server_is_away(tls: Machines) -> None:
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


def test_a_link_that_is_closed_at_once_leaves_no_connection(tls: Machines) -> None:
    patient = TransportOptions(handshake_timeout_s=600, silent_after_s=600)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = connect("tlspyo", *listener.getsockname(), tls.keys, patient)
        connection = listener.accept()[0]
        peer.close()
        with connection:
            assert closes(connection, 20)


def test_a_silent_link_is_noticed_by_both_sides(tls: Machines) -> None:
    options = TransportOptions(heartbeat_s=0.2, silent_after_s=1)
    server = tls.listen(options=options)
    with LinkProxy(*server.address) as proxy:
        peer = tls.connect(proxy, options=options)  # type: ignore[arg-type]
        connection = introduce(server, peer)
        proxy.freeze()
        until(lambda: not server.send(connection, b"anybody?"))
        until(lambda: not peer.send(b"anybody?"))
        proxy.thaw()
        introduce(server, peer)


def test_an_idle_link_stays(tls: Machines) -> None:
    options = TransportOptions(heartbeat_s=0.1, silent_after_s=0.4)
    server = tls.listen(options=options)
    peer = tls.connect(server, options=options)
    connection = introduce(server, peer)
    assert server.receive(0.9) is None
    assert server.send(connection, b"still there")
    assert peer.receive(5) == b"still there"


def test_only_the_holder_of_a_secret_has_its_password() -> None:
    (server, server_secret), (public, secret), (other, other_secret) = (_curve_pair() for _ in range(3))
    password = password_of(public, server, server_secret)
    assert len(password) == PASSWORD_BYTES
    assert password_of(public, server, secret) == password
    assert password_of(public, server, other_secret) != password
    assert password_of(public, other, other_secret) != password
    assert password_of(other, server, server_secret) != password


def test_a_server_starts_in_a_keys_folder_with_a_relative_path(
    tls: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = tls.listen(keys=KeyFolder(Path("server")))
    introduce(server, tls.connect(server))


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
def test_the_error_after_a_fork_says_what_to_do_instead(tls: Machines) -> None:
    said = subprocess.run([sys.executable, "-c", FORKED, str(tls.keys.path)], stdout=subprocess.PIPE, check=True).stdout
    assert b'"spawn"' in said


OWN_REACTOR = """
import sys, threading, time
from pathlib import Path
from twisted.internet import reactor
from transport.exchange import introduce
from tmrl_like.transport import KeyFolder, connect, listen
keys = KeyFolder(Path(sys.argv[1]))

def use():
    server = listen("tlspyo", "127.0.0.1", 0, keys)
    peer = connect("tlspyo", *server.address, keys)
    introduce(server, peer)
    reactor.callFromThread(reactor.stop)
    while reactor.running:
        time.sleep(0.01)
    server.close()
    peer.close()
    print("done", flush=True)

reactor.callWhenRunning(threading.Thread(target=use).start)
reactor.run()
"""


def test_a_program_may_run_the_reactor_itself(tls: Machines) -> None:
    command, tests = [sys.executable, "-c", OWN_REACTOR, str(tls.keys.path)], Path(__file__).parents[1]
    assert subprocess.run(command, cwd=tests, stdout=subprocess.PIPE, check=True).stdout.strip() == b"done"
