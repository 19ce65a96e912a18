"""What is particular to the tlspyo transport: its child processes, its windows, its proof."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tmrl_like.errors import TransportError
from tmrl_like.testing.transports import introduce, receive_at, send_of, until
from tmrl_like.transport import KeyFolder, TransportOptions, listen
from tmrl_like.transport.credentials import _curve_pair
from tmrl_like.transport.tlspyo.proof import Secret

from .conftest import Machines, listens
from .rawclient import closes

SERVER_WITHOUT_MAIN_GUARD = """
import sys, time
from pathlib import Path
from tmrl_like.transport import KeyFolder, listen
server = listen("tlspyo", "127.0.0.1", 0, KeyFolder(Path(sys.argv[1])))
print(server.address[1], flush=True)
time.sleep(60)
"""


def children() -> list[psutil.Process]:
    """tlspyo's own processes; other tests may have left helpers of multiprocessing."""
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in alive if "tlspyo.child" in " ".join(child.cmdline())]


def is_free(port: int) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def test_a_killed_server_leaves_no_process_and_no_port_behind(tls: Machines) -> None:
    command = [sys.executable, "-c", SERVER_WITHOUT_MAIN_GUARD, str(tls.keys.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout
        port = int(program.stdout.readline())
        (relay,) = psutil.Process(program.pid).children()
        assert not is_free(port)
        program.kill()
    until(lambda: not relay.is_running(), deadline_s=5)
    until(lambda: is_free(port), deadline_s=5)
    tls.listen(port)


def test_secrets_are_not_on_the_command_line_of_a_child(tls: Machines) -> None:
    tls.listen()
    (relay,) = children()
    command = " ".join(relay.cmdline())
    keys = tls.keys.server_keys()
    assert keys.password not in command
    assert keys.curve_secret not in command


def test_a_killed_relay_is_replaced_at_the_same_port(tls: Machines) -> None:
    server = tls.listen()
    peer = tls.connect(server)
    introduce(server, peer)
    relay = next(child for child in children() if listens(child))
    relay.kill()
    introduce(server, peer)


def test_after_a_crash_of_the_relay_no_connection_has_the_id_of_an_earlier_one(tls: Machines) -> None:
    """The server keeps a trainer's seat for its id: whoever dials first must not find it."""
    server = tls.listen()
    peer = tls.connect(server)
    ids = [introduce(server, peer)]
    for _ in range(2):
        next(child for child in children() if listens(child)).kill()
        ids.append(introduce(server, peer))
        assert not any(server.send(earlier, b"nobody") for earlier in ids[:-1])
    assert len(set(ids)) == 3


def test_a_killed_endpoint_is_replaced(tls: Machines) -> None:
    server = tls.listen()
    peer = tls.connect(server)
    introduce(server, peer)
    endpoint = next(child for child in children() if not listens(child))
    endpoint.kill()
    until(lambda: not peer.send(b"into the void"))
    introduce(server, peer)


def test_a_frozen_child_does_not_keep_a_link_from_closing(tls: Machines) -> None:
    server = tls.listen()
    (relay,) = children()
    relay.suspend()
    server.close()
    assert not relay.is_running()


def test_closing_at_once_leaves_no_child(tls: Machines) -> None:
    server = tls.listen()
    tls.connect(server).close()
    server.close()
    assert children() == []


def test_an_address_of_another_machine_is_an_error(tls: Machines) -> None:
    with pytest.raises(TransportError, match=r"cannot listen on 203\.0\.113\.1"):
        listen("tlspyo", "203.0.113.1", 0, tls.keys)
    assert children() == []


def test_peers_are_back_after_a_restart(tls: Machines) -> None:
    server = tls.listen()
    peer = tls.connect(server)
    introduce(server, peer)
    server.close()
    until(lambda: not peer.send(b"nobody there"))
    server = tls.listen(server.address[1])
    introduce(server, peer)


def test_nothing_piles_up_while_the_server_is_away(tls: Machines) -> None:
    server = tls.listen()
    peer = tls.connect(server)
    assert not peer.send(b"too early")
    introduce(server, peer)
    server.close()
    until(lambda: not peer.send(bytes(1000)))
    server = tls.listen(server.address[1])
    send_of(peer, b"fresh")
    until(lambda: receive_at(server).data == b"fresh")


def test_a_silent_link_is_noticed_by_both_sides(tls: Machines) -> None:
    options = TransportOptions(heartbeat_s=0.2, silent_after_s=1)
    server = tls.listen(options=options)
    peer = tls.connect(server, options=options)
    connection = introduce(server, peer)
    endpoint = next(child for child in children() if not listens(child))
    endpoint.suspend()
    until(lambda: not server.send(connection, b"anybody?"), deadline_s=5)
    endpoint.resume()
    introduce(server, peer)
    relay = next(child for child in children() if listens(child))
    relay.suspend()
    until(lambda: not peer.send(b"anybody?"), deadline_s=5)
    relay.resume()
    introduce(server, peer)


def test_an_idle_link_stays(tls: Machines) -> None:
    options = TransportOptions(heartbeat_s=0.1, silent_after_s=0.5)
    server = tls.listen(options=options)
    peer = tls.connect(server, options=options)
    connection = introduce(server, peer)
    assert server.receive(1.5) is None
    assert server.send(connection, b"still there")
    assert peer.receive(5) == b"still there"


def test_only_the_holder_of_the_secret_can_prove_a_key() -> None:
    server_public, server_secret = _curve_pair()
    public, secret = _curve_pair()
    other_public, other_secret = _curve_pair()
    server, nonce = Secret(server_secret, server_public), b"n" * 32
    mac = Secret(secret, public).prove_to(server_public, nonce)
    assert server.verify(public, nonce, mac)
    assert not server.verify(public, b"m" * 32, mac)
    assert not server.verify(other_public, nonce, mac)
    assert not server.verify(public, nonce, Secret(other_secret, public).prove_to(server_public, nonce))
    assert not server.verify(public, nonce, mac[:-1])
    for nonsense in ("", "x" * 40, "é" * 40, "0" * 40, "%" * 40, "#" * 40):
        assert not server.verify(nonsense, nonce, mac)


def test_a_key_that_is_none_is_an_error_and_not_a_silence(tls: Machines) -> None:
    peer = tls.connect(tls.listen(), tls.altered("damaged", curve_secret="short"))
    with pytest.raises(TransportError, match="40 characters"):
        until(lambda: peer.receive(0.2))


def test_a_crowd_that_says_nothing_keeps_nobody_out_for_long(tls: Machines) -> None:
    server = tls.listen(options=TransportOptions(handshake_timeout_s=1))
    with ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(server.address)) for _ in range(510)]
        peer = tls.connect(server)
        introduce(server, peer)
        assert closes(crowd[0])
    until(lambda: server.refused_connections() >= 510)


def test_a_relay_starts_in_a_keys_folder_with_a_relative_path(
    tls: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = tls.listen(keys=KeyFolder(Path("server")))
    introduce(server, tls.connect(server))
