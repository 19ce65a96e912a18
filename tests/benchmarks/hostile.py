"""How much of an honest worker's flow passes while another key floods the server. zmq; loopback only.

    python tests/benchmarks/hostile.py [--seconds 2] [--repeats 3]

The server is a process, and so is the flood: a peer whose key is valid, and who sends one kind of message as fast as the connection
takes it. The honest worker sends 500 packets a second; counted is what the trainer's connection receives of them. Without a
flood and with each kind in turns, `--repeats` times. Bounded: a few seconds per kind and turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
from _common import finish, median

from tmrl_like.networking import Server
from tmrl_like.transport import KeyFolder, PeerLink, connect
from tmrl_like.wire import messages as m

PACKETS_PER_S = 500
KINDS = ("none", "bundle", "a large bundle", "the same hello", "hello", "large beat", "probe", "garbage")


def message(kind: str, i: int) -> bytes:
    sys.path.insert(0, str(Path(__file__).parents[1] / "hostile"))
    from test_server_budgets import MESSAGES

    return MESSAGES[{"large beat": "a large beat"}.get(kind, kind)](i)


def serve(keys: str, port: Any) -> None:
    with Server(0, host="127.0.0.1", keys_dir=keys) as server:
        port.send(server.address[1])
        server.serve_forever()


def introduced(port: int, keys: KeyFolder, role: str, name: str) -> PeerLink:
    peer = connect("zmq", "127.0.0.1", port, keys)
    hello = m.encode(m.Hello(role, name, 1, "0"))
    while not peer.send(hello):
        peer.receive(0.01)
    while (data := peer.receive(1.0)) is None or not isinstance(m.decode(data)[0], m.Welcome):
        pass
    return peer


def flood(port: int, keys: str, kind: str, done: Any) -> None:
    with closing(introduced(port, KeyFolder(Path(keys)), "worker", "w")) as peer:
        for i in range(sys.maxsize):
            if done.is_set():
                return
            if not peer.send(message(kind, i)) or i % 64 == 0:
                peer.receive(0.0)


def passed(processes: Any, port: int, folder: KeyFolder, thief: KeyFolder, kind: str, seconds: float) -> float:
    """The share of the honest worker's packets that reached the trainer, within a second of the last one."""
    done = processes.Event()
    attacker = processes.Process(target=flood, args=(port, str(thief.path), kind, done))
    with closing(introduced(port, folder, "trainer", "t")) as trainer:
        with closing(introduced(port, folder, "worker", "honest")) as worker:
            if kind != "none":
                attacker.start()
                time.sleep(1.5)  # until it is in full flow
            sent = received = 0
            started = now = time.monotonic()
            while now - started < seconds + 1.0:
                while sent < (now - started) * PACKETS_PER_S and now - started < seconds:
                    sent += 1
                    worker.send(m.encode(m.Bundle("honest", 1, 1, previous=sent), bytes(500)))
                data = trainer.receive(0.001)
                if data is not None:
                    message, _ = m.decode(data)
                    received += isinstance(message, m.Bundle) and message.worker == "honest"
                now = time.monotonic()
            done.set()
            if kind != "none":
                attacker.join()
            for peer in (worker, trainer):
                peer.send(m.encode(m.Bye()))
    return received / sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    processes = multiprocessing.get_context("spawn")
    shares: dict[str, list[float]] = {kind: [] for kind in KINDS}
    grown: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    with tempfile.TemporaryDirectory() as home:
        folder, thief = KeyFolder(Path(home) / "keys"), KeyFolder(Path(home) / "thief")
        thief.join(folder.invite("thief"))
        ours, theirs = processes.Pipe()
        server = processes.Process(target=serve, args=(str(folder.path), theirs))
        server.start()
        try:
            port, memory = ours.recv(), psutil.Process(server.pid).memory_info
            for _ in range(options.repeats):
                for kind in KINDS:
                    before = memory().rss
                    shares[kind].append(passed(processes, port, folder, thief, kind, options.seconds))
                    grown[kind] = max(grown[kind], (memory().rss - before) / 1e6)
        finally:
            server.kill()
    result: dict[str, Any] = {}
    for kind, values in shares.items():
        result[f"flood of {kind}: share that passes (median)"] = median(values)
        result[f"flood of {kind}: … smallest, largest"] = f"{min(values):.3f}, {max(values):.3f}"
        result[f"flood of {kind}: server's memory, MB more"] = grown[kind]
    finish(result)


if __name__ == "__main__":
    main()
