"""What it takes to start: the import, the command line, a server, and a worker of a shipped actor with its memory.

    python tests/benchmarks/start.py [--repeats 7]

Each is a process, in turns with its floor: a Python that does nothing (import, --help), one that binds a port (server),
one that makes the drone's environment and steps it (worker). Memory is looked at two seconds after the first step, of
the process that drives the environment and of its link: what is its own (USS), its part of what it shares (PSS, which
counts each page once; Linux), and what is resident, shared pages whole in each.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from _common import CONFIG, Options, finish, median, repeat
from kit.ports import free_ports

BIND = "import socket,sys,time; s=socket.create_server(('127.0.0.1',int(sys.argv[1]))); time.sleep(60)"
FIRST_STEP = """
from tmrl_like.envs.drone import DroneEnv
class StepsFirst(DroneEnv):
    has_stepped = False
    def step(self, action):
        if not self.has_stepped:
            self.has_stepped = True
            print("first step", flush=True)
        return super().step(action)
"""
BARE = (
    "from steps_first import StepsFirst as E; e = E(); e.reset(); [e.step(e.action_space.sample()) for _ in range(99)]"
)
KINDS = ("uss", "pss", "rss")


def run(cpu: list[float], *command: str) -> float:
    """Seconds from the start of a Python to its end; those of the CPU are added to `cpu`."""
    before, started = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
    took_s, after = time.perf_counter() - started, os.times()
    cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return took_s


def listens(home: str, command: Callable[[int], list[str]]) -> float:
    """Seconds from the start of a Python until its port accepts."""
    (port,) = free_ports(1)
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command(port)],
        env=os.environ | {"TMRL_LIKE_HOME": home},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while time.perf_counter() - started < 20:
            try:
                socket.create_connection(("127.0.0.1", port), 0.5).close()
                return time.perf_counter() - started
            except OSError:
                time.sleep(0.002)
        sys.exit(f"{command(port)} does not listen")
    finally:
        process.kill()
        process.wait()


def memory_mb(processes: list[psutil.Process]) -> dict[str, float]:
    """Of all of them together, by kind."""
    infos = [process.memory_full_info() for process in processes]
    return {kind: sum(getattr(info, kind, 0) for info in infos) / 1e6 for kind in KINDS}


def steps(home: str, memory: list[dict[str, float]], *command: str) -> float:
    """Seconds from the start of a Python until its first step; its memory, and that of its children, go to `memory`."""
    environment = {**os.environ, "TMRL_LIKE_HOME": home, "PYTHONPYCACHEPREFIX": home}
    environment["PYTHONPATH"] = os.pathsep.join((home, os.environ.get("PYTHONPATH", "")))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled in the first run, as what is installed is
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "first step":
            sys.exit(process.communicate()[1])
        took_s = time.perf_counter() - started
        time.sleep(2.0)
        itself = psutil.Process(process.pid)
        memory += [memory_mb([itself]), memory_mb(itself.children(recursive=True))]
        return took_s
    finally:
        process.terminate()
        process.communicate(timeout=20)


def main() -> None:
    parser = Options(__doc__, repeats=1)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse().repeats
    result: dict[str, Any] = {}
    commands = {"bare_python": ["-c", "pass"], "import": ["-c", "import tmrl_like"], "help": ["-m", "tmrl_like", "-h"]}
    cpu: dict[str, list[float]] = {name: [] for name in commands}
    found = repeat(3 * repeats, *(partial(run, cpu[name], *command) for name, command in commands.items()))
    wall = dict(zip(commands, map(median, found), strict=True))
    for name, goal_s in (("import", 0.05), ("help", 0.3)):
        result[f"{name}_beyond_bare_s"] = wall[name] - wall["bare_python"]
        result[f"{name}_beyond_bare_cpu_s"] = median(cpu[name]) - median(cpu["bare_python"])
        result[f"{name}_goal_s"] = goal_s
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "steps_first.py").write_text(FIRST_STEP)
        ours = ["-m", "tmrl_like"]
        server = partial(listens, home, lambda port: [*ours, "server", str(CONFIG), f"--server.port={port}"])
        result["server_start_first_time_with_key_generation_s"] = server()
        starts, floors = repeat(repeats, server, partial(listens, home, lambda port: ["-c", BIND, str(port)]))
        result |= {"server_start_s": median(starts), "server_start_max_s": max(starts), "server_goal_s": 0.7}
        result["floor_bare_python_listening_s"] = median(floors)
        options = ["--env.class_path=steps_first.StepsFirst", "--server.port=1"]
        own: list[dict[str, float]] = []
        bare: list[dict[str, float]] = []
        worker = partial(steps, home, own, *ours, "worker", str(CONFIG), *options)
        result["worker_start_first_time_s"] = worker()  # which compiles
        starts, floors = repeat(repeats, worker, partial(steps, home, bare, "-c", BARE))
    result |= {"worker_start_s": median(starts), "worker_start_max_s": max(starts), "worker_goal_s": 0.5}
    result["floor_bare_environment_s"] = median(floors)
    for kind in KINDS:
        env_mb, link_mb, floor_mb = (median([mb[kind] for mb in of]) for of in (own[::2], own[1::2], bare[::2]))
        result |= {f"environment_process_{kind}_mb": env_mb, f"link_process_{kind}_mb": link_mb}
        result[f"both_beyond_the_environment_{kind}_mb"] = env_mb + link_mb - floor_mb
    finish(result | {"goal_both_beyond_the_environment_mb": 60})


if __name__ == "__main__":
    main()
