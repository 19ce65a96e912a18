"""How soon 1,000 peers with a key each are in, and one beside strangers. zmq; loopback only.

    python tests/benchmarks/admission.py [--peers 1000] [--wrong-per-s 200] [--idle 1100]

The peers are bare DEALER sockets of another process; each has its own key and says hello every second. Strangers are
connections that say nothing and handshakes with an unknown key. Bounded: a minute per part.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import psutil
import zmq
from _common import Options, Part, finish

from tmrl_like.transport import KeyFolder, ServerLink, connect, listen
from tmrl_like.transport.base import Identity, raise_descriptor_limit
from tmrl_like.transport.credentials import Authorized, AuthorizedKeys, PeerKeys

LIMIT_S = 60.0
Dealer: TypeAlias = "zmq.Socket[bytes]"


def dial(context: zmq.Context[zmq.Socket[bytes]], port: int, keys: PeerKeys, public: bytes, secret: bytes) -> Dealer:
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    dealer.reconnect_ivl, dealer.reconnect_ivl_max = 100, 1000  # as our own peers
    dealer.curve_serverkey = keys.server_curve_public.encode()
    dealer.curve_publickey, dealer.curve_secretkey = public, secret
    dealer.connect(f"tcp://127.0.0.1:{port}")
    dealer.send(b"hello")
    return dealer


def crowd(port: int, keys: PeerKeys, pairs: list[tuple[bytes, bytes]], pipe: Any) -> None:
    """All at once, and stay."""
    raise_descriptor_limit()
    context = zmq.Context(2)
    context.max_sockets = 20_000
    dealers = [dial(context, port, keys, *pair) for pair in pairs]
    while not pipe.poll(1.0):
        for dealer in dealers:
            dealer.send(b"hello", zmq.NOBLOCK)  # as our own peers, until they are answered


def knock(port: int, keys: PeerKeys, per_s: float, pipe: Any) -> None:
    """Wrong handshakes, so many a second."""
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    due, dealers = time.monotonic(), []
    while not pipe.poll(max(0.0, due - time.monotonic())):
        dealers.append(dial(context, port, keys, public, secret))
        if len(dealers) > 100:
            dealers.pop(0).close()
        due += 1 / per_s


def seconds_until_all_are_in(server: ServerLink, count: int) -> tuple[float, int]:
    names: set[str] = set()
    started = time.monotonic()
    while len(names) < count and time.monotonic() - started < LIMIT_S:
        message = server.receive(0.2)
        if message is not None:
            names.add(message.identity.name)
    return time.monotonic() - started, len(names)


def count_refused(keys: AuthorizedKeys) -> list[str]:
    """Keys that were asked for and are not known, from now on."""
    refused: list[str] = []
    find = keys.find

    def find_and_count(key: str) -> Identity | None:
        known = find(key)
        if known is None:
            refused.append(key)
        return known

    keys.find = find_and_count  # type: ignore[method-assign]
    return refused


def seconds_until_in(server: ServerLink, folder: KeyFolder) -> float:
    started = time.monotonic()
    with closing(connect("zmq", *server.address, folder)) as peer:
        is_sent = False
        while time.monotonic() - started < LIMIT_S:
            is_sent = is_sent or peer.send(b"late")  # which takes nothing before there is a connection
            message = server.receive(0.2 if is_sent else 0.001)
            if message is not None and bytes(message.data) == b"late":
                return time.monotonic() - started
    return LIMIT_S


def main() -> None:
    parser = Options(__doc__, peers=50, wrong_per_s=50, idle=50)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--wrong-per-s", type=float, default=200)
    parser.add_argument("--idle", type=int, default=1100)
    options = parser.parse()
    raise_descriptor_limit()
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        folder = KeyFolder(Path(home) / "keys")
        local = folder.peer_keys()
        pairs: list[tuple[bytes, bytes]] = []
        for i in range(options.peers):
            pairs.append(zmq.curve_keypair())
            entry = Authorized(("worker",), pairs[i][0].decode())  # what `invite` writes, and 1,000 in a moment
            (folder.path / "authorized" / f"peer{i}.json").write_bytes(msgspec.json.encode(entry))
        server = stack.enter_context(closing(listen("zmq", "127.0.0.1", 0, folder)))
        port = server.address[1]

        result["alone: in after, s"] = seconds_until_in(server, folder)
        with Part(crowd, port, local, pairs):
            while (first := server.receive(0.2)) is None:
                pass
            took_s, admitted = seconds_until_all_are_in(server, options.peers - 1)
        result[f"of {options.peers} peers at once, in"] = admitted + bool(first)
        result["the last of them in after the first, s"] = took_s

        with Part(knock, port, local, options.wrong_per_s):
            refused = count_refused(server._gate._keys)
            while len(refused) < options.wrong_per_s:
                server.receive(0.1)
            refused.clear()
            started = time.monotonic()
            waits = [seconds_until_in(server, folder) for _ in range(5)]
            result["wrong handshakes refused a second"] = len(refused) / (time.monotonic() - started)
            result["beside them: in after, s (slowest of 5)"] = max(waits)

        before = psutil.Process().memory_info().rss
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(options.idle)]
        result[f"beside {len(strangers)} idle connections: in after, s"] = seconds_until_in(server, folder)
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)
        loud = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(60)]
        senders = [threading.Thread(target=flood, args=(sock, greeting)) for sock in loud]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(LIMIT_S)
        result["60 strangers with 60 MB each: memory, MB more"] = (psutil.Process().memory_info().rss - before) / 1e6
    finish(result)


def flood(sock: socket.socket, greeting: bytes) -> None:
    try:
        sock.settimeout(5)
        sock.sendall(greeting + b"\x06" + (60 << 20).to_bytes(8, "big"))
        for _ in range(60):
            sock.sendall(bytes(1 << 20))
    except OSError:
        pass  # cut, as it should be


if __name__ == "__main__":
    main()
