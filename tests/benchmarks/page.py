"""What a page costs that shows many workers, and how old what it shows is.

    python tests/benchmarks/page.py [--workers 1000] [--seconds 30]

Light workers (a connection and its signs of life, twice a second, without environments and samples) meet a server; a
stand-in for a trainer reports a round and twenty episodes a second. The page is a `tmrl-like page`; this program is the
browser that looks at it. Each sign of life carries its time, so that the age of what the browser has is known: when an
event arrives ("fresh"), and right before the next one ("stale"). CPU time is the processes' own, from the operating
system; "alone": while nobody looks.
"""

from __future__ import annotations

import contextlib
import heapq
import http.client
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import CONFIG, Options, Part, finish, make_room_for_links, wait_for
from kit.ports import free_ports

PROCESSES = 2
BEAT_S = 0.5
ARRIVES_EVERY_S = 0.03  # one in each of the processes
EPISODES_PER_S = 20


def run_workers(keys_folder: Path, names: list[str], port: int, _: Any) -> None:
    import tmrl_like
    from tmrl_like.transport import KeyFolder, TransportOptions
    from tmrl_like.transport.zmq import ZmqPeerLink
    from tmrl_like.wire import messages as m
    from tmrl_like.wire.condition import Condition

    logging.disable()
    make_room_for_links(len(names))
    began, keys = time.monotonic(), KeyFolder(keys_folder)
    links, welcome = [], set()
    due = [(began + ARRIVES_EVERY_S * i, i) for i in range(len(names))]
    steps = 0
    while True:
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
            condition = Condition(
                policy_version=7,
                policy_age_s=30.0,
                env_steps=steps,
                overruns=3,
                unacknowledged_samples=120,
                time_step_s=0.05,
                late_steps=late,
                action_delay_s=0.002,
                returns=(-20.5, -18.25, -16.0, -15.5, -14.75),
            )
            link.send(m.encode(m.Beat(names[i], condition, 7, time.time())))


def run_trainer(keys_folder: Path, port: int, _: Any) -> None:
    import tmrl_like
    from tmrl_like.transport import KeyFolder, connect
    from tmrl_like.wire import messages as m

    link = connect("zmq", "127.0.0.1", port, KeyFolder(keys_folder))
    rng, began = np.random.default_rng(0), time.monotonic()
    is_in = False
    names = [f"metric_{i}" for i in range(40)]
    names += ["q_mean", "q_target_mean", "loss_critic", "loss_actor", "entropy_nats"]
    while True:
        time.sleep(1.0)
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
        times = np.array([worker["at_s"] for worker in json.loads(data[6:])])
        fresh += list(now - times)
        sizes.append(len(data))
    connection.close()
    return fresh, stale, sizes


def measure(workers: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as text, contextlib.ExitStack() as until_end:
        home, port, page_port = Path(text), *free_ports(2)

        def start(*command: str) -> psutil.Process:
            experiment = [str(CONFIG), f"--server.port={port}", f"--server.max_workers={workers}"]
            program = [sys.executable, "-m", "tmrl_like", command[0], *experiment, *command[1:], "--log-level", "error"]
            process = subprocess.Popen(program, env=os.environ | {"TMRL_LIKE_HOME": str(home)})
            until_end.callback(process.wait)
            until_end.callback(process.terminate)
            return psutil.Process(process.pid)

        server = start("server")
        wait_for((home / "keys" / "peer.json").exists, "the server's keys")
        names = [f"worker-{i}" for i in range(workers)]
        for i in range(PROCESSES):
            until_end.enter_context(Part(run_workers, home / "keys", names[i::PROCESSES], port))
        until_end.enter_context(Part(run_trainer, home / "keys", port))
        programs = {"page": start("page", "--port", str(page_port)), "server": server}
        wait_for(lambda: metric(page_port, "tmrl_server_workers") == workers, "all workers")

        def spent(do: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
            """What it returns, and the share of a core that each program took meanwhile, in percent."""
            before = {name: sum(program.cpu_times()[:2]) for name, program in programs.items()}
            began = time.monotonic()
            found, passed_s = do(), time.monotonic() - began
            return found, {n: 100 * (sum(p.cpu_times()[:2]) - before[n]) / passed_s for n, p in programs.items()}

        _, alone = spent(lambda: time.sleep(seconds))
        (fresh, stale, sizes), watched = spent(lambda: look(page_port, seconds))
        found: dict[str, Any] = {"workers": workers}
        for name in programs:
            found |= {f"{name}_cpu_percent": watched[name], f"{name}_cpu_percent_alone": alone[name]}
        for name, ages in (("fresh", fresh), ("stale", stale)):
            found |= {f"age_{name}_p{q}_s": float(np.percentile(ages, q)) for q in (50, 99)}
        return found | {"events_per_s": len(sizes) / seconds, "event_kb": float(np.median(sizes)) / 1e3}


def metric(page_port: int, name: str) -> float | None:
    connection = http.client.HTTPConnection("127.0.0.1", page_port, timeout=10)
    with contextlib.suppress(OSError):
        connection.request("GET", "/metrics")
        for line in connection.getresponse().read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return None


def main() -> None:
    parser = Options(__doc__, workers=10, seconds=3.0)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse()
    finish(measure(arguments.workers, arguments.seconds))


if __name__ == "__main__":
    main()
