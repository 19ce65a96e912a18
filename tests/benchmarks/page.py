"""What a page costs that shows many workers, and how old what it shows is.

    python tests/benchmarks/page.py [--workers 1000] [--seconds 30]

Light workers (a connection and its signs of life, twice a second, without environments and samples) meet a server; a
stand-in for a trainer reports a round and twenty episodes a second. The page is a `tmrl-like page`; this program is the
browser that looks at it. Each sign of life carries its time, so that the age of what the browser has is known: when an
event arrives ("fresh"), and right before the next one ("stale"). CPU time is the processes' own, from the operating
system; "alone": while nobody looks.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import http.client
import json
import logging
import multiprocessing as mp
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import finish, make_room_for_links

from tmrl_like.page.watcher import FIELDS

EXPERIMENT = Path(__file__).parents[2] / "config" / "drone.yaml"
PROCESSES = 2
BEAT_S = 0.5
ARRIVES_EVERY_S = 0.03  # one in each of the processes
EPISODES_PER_S = 20
AT_S = FIELDS.index("at_s")


def run_workers(keys_folder: Path, names: list[str], port: int, stopping: Any) -> None:
    import tmrl_like
    from tmrl_like.transport import KeyFolder, TransportOptions
    from tmrl_like.transport.zmq import ZmqPeerLink
    from tmrl_like.wire import messages as m

    logging.disable()
    make_room_for_links(len(names))
    began, keys = time.monotonic(), KeyFolder(keys_folder)
    links, welcome = [], set()
    due = [(began + ARRIVES_EVERY_S * i, i) for i in range(len(names))]
    steps = 0
    while not stopping.is_set():
        at, i = due[0]
        now = time.monotonic()
        if now < at:
            time.sleep(min(at - now, 0.05))
            continue
        heapq.heapreplace(due, (max(at + BEAT_S, now), i))
        if i == len(links):
            links.append(ZmqPeerLink("127.0.0.1", port, keys, TransportOptions()))
        link = links[i]
        while (data := link.receive(0.0)) is not None:
            message = m.decode(data)[0]
            if isinstance(message, m.Welcome):
                welcome.add(i)
            elif isinstance(message, m.HelloWanted):
                welcome.discard(i)
        if i not in welcome:
            hello = m.Hello("worker", names[i], i + 1, tmrl_like.__version__)
            link.send(m.encode(hello))
        else:
            steps += 1
            late = (steps, 50, 20, 10, 5, 2, 1, 0)
            beat = m.Beat(names[i], 7, 30.0, 7, steps, 3, 120, time_step_s=0.05, late_steps=late, at_s=time.time())
            beat.action_delay_s, beat.returns = 0.002, (-20.5, -18.25, -16.0, -15.5, -14.75)
            link.send(m.encode(beat))
    for link in links:
        link.close()


def run_trainer(keys_folder: Path, port: int, stopping: Any) -> None:
    import tmrl_like
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire import messages as m

    link = connect("zmq", "127.0.0.1", port, KeyFolder(keys_folder))
    rng, began = np.random.default_rng(0), time.monotonic()
    is_in = False
    names = [f"metric_{i}" for i in range(40)]
    names += ["q_mean", "q_target_mean", "loss_critic", "loss_actor", "entropy_nats"]
    while not stopping.wait(1.0):
        while (data := link.receive(0.0)) is not None:
            is_in |= isinstance(m.decode(data)[0], m.Welcome)
        if not is_in:
            link.send(m.encode(m.Hello("trainer", "t", 1, tmrl_like.__version__)))
            continue
        link.send(m.encode(m.Beat()))
        time_s = time.monotonic() - began
        records = [{"kind": "episode", "time_s": time_s, "test": False, "return": float(rng.normal())}] * EPISODES_PER_S
        numbers = dict(zip(names, rng.normal(size=len(names)), strict=True))
        records.append({"kind": "round", "time_s": time_s, **numbers})
        for record in records:
            link.send(m.encode(m.Report(), json.dumps(record).encode()))
    link.close()


def look(page_port: int, seconds: float) -> tuple[list[float], list[float], list[int]]:
    """As a browser: the ages of all signs of life when an event brings them, and when the next one comes; sizes."""
    connection = http.client.HTTPConnection("127.0.0.1", page_port, timeout=60)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    fresh, stale, sizes = [], [], []
    times, until = np.empty(0), time.monotonic() + seconds
    while time.monotonic() < until:
        if answer.readline() != b"event: workers\n":
            continue
        data = answer.readline()
        now = time.time()
        stale += list(now - times)
        times = np.array([beat[AT_S] for _, beat in json.loads(data[6:])])
        fresh += list(now - times)
        sizes.append(len(data))
    connection.close()
    return fresh, stale, sizes


def cpu_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def measure(workers: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as text, socket.socket() as one, socket.socket() as two:
        home = Path(text)
        for free in (one, two):
            free.bind(("127.0.0.1", 0))
        port, page_port = (free.getsockname()[1] for free in (one, two))
        one.close()
        two.close()
        experiment = [str(EXPERIMENT), f"--server.port={port}", f"--server.max_workers={workers}"]
        environment = os.environ | {"TMRL_LIKE_HOME": str(home)}

        def start(*command: str) -> subprocess.Popen[bytes]:
            program = [sys.executable, "-m", "tmrl_like", command[0], *experiment, *command[1:]]
            return subprocess.Popen([*program, "--log-level", "error"], env=environment)

        server = start("server")
        wait_for(lambda: (home / "keys" / "peer.json").exists())
        context, stopping = mp.get_context("spawn"), mp.get_context("spawn").Event()
        names = [f"worker-{i}" for i in range(workers)]
        shares = [(home / "keys", names[i::PROCESSES], port, stopping) for i in range(PROCESSES)]
        parts = [context.Process(target=run_workers, args=share) for share in shares]
        parts.append(context.Process(target=run_trainer, args=(home / "keys", port, stopping)))
        for part in parts:
            part.start()
        page = start("page", "--port", str(page_port))
        try:
            wait_for(lambda: metric(page_port, "tmrl_server_workers") == workers)
            programs = [psutil.Process(process.pid) for process in (page, server)]

            def spent(do: Any) -> tuple[float, float]:
                before, began = [cpu_s(program) for program in programs], time.monotonic()
                do()
                passed_s = time.monotonic() - began
                page_s, server_s = (cpu_s(p) - b for p, b in zip(programs, before, strict=True))
                return 100 * page_s / passed_s, 100 * server_s / passed_s

            found: dict[str, Any] = {"workers": workers}
            alone = spent(lambda: time.sleep(seconds))
            seen: list[Any] = []
            watched = spent(lambda: seen.append(look(page_port, seconds)))
            fresh, stale, sizes = seen[0]
            found |= {"page_cpu_percent": watched[0], "page_cpu_percent_alone": alone[0]}
            found |= {"server_cpu_percent": watched[1], "server_cpu_percent_alone": alone[1]}
            for name, ages in (("fresh", fresh), ("stale", stale)):
                found |= {f"age_{name}_p{q}_s": float(np.percentile(ages, q)) for q in (50, 99)}
            return found | {"events_per_s": len(sizes) / seconds, "event_kb": float(np.median(sizes)) / 1e3}
        finally:
            stopping.set()
            for part in parts:
                part.join(20)
            for process in (page, server):
                process.terminate()
                process.wait(20)


def metric(page_port: int, name: str) -> float | None:
    connection = http.client.HTTPConnection("127.0.0.1", page_port, timeout=10)
    with contextlib.suppress(OSError):
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return None


def wait_for(condition: Any, within_s: float = 120.0) -> None:
    until = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > until:
            sys.exit("a part does not come up")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    finish(measure(arguments.workers, arguments.seconds))


if __name__ == "__main__":
    main()
