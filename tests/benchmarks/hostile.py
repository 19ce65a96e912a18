"""How much of an honest worker's flow passes while another key floods the server. zmq; loopback only.

    python tests/benchmarks/hostile.py [--seconds 2] [--repeats 3]

The server is a process, and so is the flood: a peer whose key is valid, and who sends one kind of message as fast as
the connection takes it. The honest worker sends 500 packets a second; counted is what the trainer's connection receives
of them. Without a flood and with each kind in turns, `--repeats` times. Bounded: a few seconds per kind and turn.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from _common import SPAWN, Options, Part, finish, median, run_server

from tmrl_like.transport import KeyFolder, PeerLink, connect
from tmrl_like.wire import messages as m

PACKETS_PER_S = 500
KINDS = ("none", "bundle", "a large bundle", "the same hello", "hello", "a large beat", "probe", "garbage")


def introduced(port: int, keys: KeyFolder, role: str, name: str) -> PeerLink:
    peer = connect("zmq", "127.0.0.1", port, keys)
    hello = m.encode(m.Hello(role, name, 1, "0"))
    while not peer.send(hello):
        peer.receive(0.01)
    while (data := peer.receive(1.0)) is None or not isinstance(m.decode(data)[0], m.Welcome):
        pass
    return peer


def flood(port: int, keys: Path, kind: str, sent: Any, _: Any) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "hostile"))
    from test_server_budgets import MESSAGES

    messages = [MESSAGES[kind](i) for i in range(1000)]
    with closing(introduced(port, KeyFolder(keys), "worker", "w")) as peer:
        for i in itertools.cycle(range(len(messages))):
            sent.value += peer.send(messages[i])
            if i % 64 == 0:
                peer.receive(0.0)


def passed(port: int, folder: KeyFolder, thief: KeyFolder, kind: str, for_s: float) -> list[float]:
    """The share of the honest worker's packets that reached the trainer, and the flood's messages a second."""
    hostile = SPAWN.Value("q", 0)
    with (
        closing(introduced(port, folder, "trainer", "t")) as trainer,
        closing(introduced(port, folder, "worker", "honest")) as worker,
        Part(flood, port, thief.path, kind, hostile) if kind != "none" else nullcontext(),
    ):
        started, sent, received = 0.0, 0, 0
        now, until, next_beat = time.monotonic(), 0.0, 0.0
        while not started or now < until:
            if not started and (kind == "none" or hostile.value > 100):
                started, before, until = now, hostile.value, now + for_s + 1.0
            while started and sent < min(now - started, for_s) * PACKETS_PER_S:
                sent += worker.send(m.encode(m.Bundle("honest", 1, 1, previous=sent + 1), bytes(500)))
            if now >= next_beat:
                next_beat = now + 0.5
                for peer in (worker, trainer):
                    peer.send(m.encode(m.Beat()))
                worker.receive(0.0)
            if (data := trainer.receive(0.001)) is not None:
                message, _ = m.decode(data)
                received += isinstance(message, m.Bundle) and message.worker == "honest"
            now = time.monotonic()
        rate = (hostile.value - before) / (now - started)
        for peer in (worker, trainer):
            peer.send(m.encode(m.Bye()))
    return [received / sent, rate]


def main() -> None:
    parser = Options(__doc__, seconds=0.5, repeats=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse()
    kinds = KINDS[:3] if options.quick else KINDS
    measured: dict[str, list[list[float]]] = {kind: [] for kind in kinds}
    grown: dict[str, float] = dict.fromkeys(kinds, 0.0)
    with tempfile.TemporaryDirectory() as home:
        folder, thief = KeyFolder(Path(home) / "keys"), KeyFolder(Path(home) / "thief")
        thief.join(folder.invite("thief"))
        with Part(run_server, {"keys_dir": folder.path}) as server:
            port = server.hear()
            for _, kind in itertools.product(range(options.repeats), kinds):
                before = server.rss_mb()
                measured[kind].append(passed(port, folder, thief, kind, options.seconds))
                grown[kind] = max(grown[kind], server.rss_mb() - before)
    result: dict[str, Any] = {}
    for kind, values in measured.items():
        shares, rates = zip(*values, strict=True)
        result[f"flood of {kind}: messages a second"] = median(list(rates))
        result[f"flood of {kind}: share that passes (median)"] = median(list(shares))
        result[f"flood of {kind}: … smallest, largest"] = f"{min(shares):.3f}, {max(shares):.3f}"
        result[f"flood of {kind}: server's memory, MB more"] = grown[kind]
    finish(result)


if __name__ == "__main__":
    main()
