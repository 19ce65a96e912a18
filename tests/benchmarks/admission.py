"""How soon 1,000 peers with a key each are in, and one beside strangers. zmq; loopback only.

    python tests/benchmarks/admission.py [--peers 1000] [--wrong-per-s 200] [--idle 1100]

The peers are bare DEALER sockets of another process; each has its own key and says hello every second. Strangers are
connections that say nothing and handshakes with an unknown key.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import zmq
from _harness import Part, Row, benchmark

from tmrl_like.transport import KeyFolder, ServerLink, connect, listen
from tmrl_like.transport.base import raise_descriptor_limit
from tmrl_like.transport.credentials import Authorized, PeerKeys

LIMIT_S = 60.0
Dealer: TypeAlias = "zmq.Socket[bytes]"


def dial(context: zmq.Context[Dealer], port: int, keys: PeerKeys, public: bytes, secret: bytes) -> Dealer:
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


def knock(port: int, keys: PeerKeys, per_s: int, pipe: Any) -> None:
    """Wrong handshakes, so many a second."""
    context = zmq.Context()
    public, secret = zmq.curve_keypair()
    due, dealers = time.monotonic(), []
    while not pipe.poll(max(0.0, due - time.monotonic())):
        dealers.append(dial(context, port, keys, public, secret))
        if len(dealers) > 100:
            dealers.pop(0).close()
        due += 1 / per_s


def authorized(folder: KeyFolder, peers: int) -> list[tuple[bytes, bytes]]:
    """A key for each peer; as `invite` writes them, and 1,000 in a moment."""
    pairs = [zmq.curve_keypair() for _ in range(peers)]
    for i, (public, _) in enumerate(pairs):
        entry = Authorized(("worker",), public.decode())
        (folder.path / "authorized" / f"peer{i}.json").write_bytes(msgspec.json.encode(entry))
    return pairs


def seconds_until_all_are_in(server: ServerLink, count: int) -> float:
    """From the first one on."""
    names: set[str] = set()
    started = 0.0
    while len(names) < count:
        message = server.receive(0.2)
        if message is not None:
            started = started or time.monotonic()
            names.add(message.identity.name)
        if started and time.monotonic() - started > LIMIT_S:
            return float("inf")
    return time.monotonic() - started


def seconds_until_in(server: ServerLink, folder: KeyFolder) -> float:
    started = time.monotonic()
    with closing(connect("zmq", *server.address, folder)) as peer:
        is_sent = False
        while time.monotonic() - started < LIMIT_S:
            is_sent = is_sent or peer.send(b"late")  # which takes nothing before there is a connection
            message = server.receive(0.2 if is_sent else 0.001)
            if message is not None and bytes(message.data) == b"late":
                return time.monotonic() - started
    return float("inf")


def measure(options: Any) -> Iterator[Row]:
    raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        folder = KeyFolder(Path(home) / "keys")
        keys = folder.peer_keys()
        pairs = authorized(folder, options.peers)
        server = stack.enter_context(closing(listen("zmq", "127.0.0.1", 0, folder)))
        port = server.address[1]
        with Part(crowd, port, keys, pairs):
            last_s = seconds_until_all_are_in(server, options.peers)
        yield {
            "what": f"{options.peers:,} peers at once: the last one in, s",
            "ours": last_s,
            "goal": 10,
        }

        def dialled() -> list[float]:
            return [seconds_until_in(server, folder) for _ in range(5)]

        yield {"what": "a peer dials: in, s", "ours": dialled()}
        with Part(knock, port, keys, options.wrong_per_s):
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                server.receive(0.1)
            yield {"what": f"… beside {options.wrong_per_s} wrong handshakes a second", "ours": dialled()}
        for _ in range(options.idle):
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        yield {"what": f"… beside {options.idle:,} idle connections", "ours": dialled()}


if __name__ == "__main__":
    quick = {"peers": 50, "wrong_per_s": 50, "idle": 50}
    benchmark(__doc__, measure, peers=1000, wrong_per_s=200, idle=1100, quick=quick)
