"""What grows while everything runs for long: `python tests/benchmarks/soak.py [--minutes 30]` (Linux).

Server, trainer and worker of config/drone.yaml are processes, as `tmrl-like server`, `trainer` and `worker` start them;
over each transport a set of its own, beside each other. The worker steps fifty times a second, the trainer trains from
a memory that is full soon, writes checkpoints and keeps policies. A second worker comes, is killed, and comes again.

Every two seconds it looks at each process: memory that is resident, memory that is the process's own (without files and
shared memory), descriptors and threads. What it prints is their slope after the warm-up (Theil and Sen's: the median of
the slopes between all pairs, of means over twenty seconds), per hour, and beside it between which slopes nine of ten
lie that half of the points give, drawn at random.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import CONFIG, Options, finish
from kit.ports import free_ports

LOOK_EVERY_S = 2.0
KINDS = ("resident MB", "own MB", "descriptors", "threads")
OPTIONS = {
    "env.time_step_duration": 0.02,
    "memory.memory_size": 5000,
    "trainer.epochs": 1_000_000,
    "trainer.rounds": 1,
    "trainer.steps": 100,
    "trainer.max_minutes": 1_000_000,
    "trainer.max_training_steps_per_env_step": 0.5,
    "trainer.checkpoint_interval_s": 10,
    "trainer.keep_policies": 10,
}

Looks = dict[tuple[str, str], list[tuple[float, float]]]
"""By part and kind: (seconds, value)."""


class Run:
    """The parts over one transport. Use it as a context manager."""

    def __init__(self, transport: str, home: Path) -> None:
        self.transport = transport
        self.home = home
        (self._port,) = free_ports(1)
        self._parts: dict[str, subprocess.Popen[bytes]] = {}
        self.looks: Looks = defaultdict(list)

    def start(self, part: str) -> None:
        options = OPTIONS | {"server.transport": self.transport, "server.port": self._port}
        if part == "visitor":  # two workers of one machine do not keep their weights in one file
            options["run_name"] = part
        command = [sys.executable, "-m", "tmrl_like", "worker" if part == "visitor" else part, str(CONFIG)]
        command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (self.home / f"{part}.txt").open("ab") as log:
            environment = {**os.environ, "TMRL_LIKE_HOME": str(self.home), "OMP_NUM_THREADS": "1"}
            self._parts[part] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def visit(self) -> None:
        """The second worker is killed, and comes again."""
        if "visitor" in self._parts:
            self._parts["visitor"].kill()
            self._parts["visitor"].wait()
        self.start("visitor")

    def look(self, now_s: float) -> None:
        for part in ("server", "trainer", "worker"):
            if (code := self._parts[part].poll()) is not None:
                raise RuntimeError(f"{self.transport}: the {part} has ended ({code}): {self._said(part)}")
            itself = psutil.Process(self._parts[part].pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                self._note(part, itself, now_s)
            for child in itself.children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "link_process" in " ".join(child.cmdline()):
                        self._note("worker's link", child, now_s)

    def _note(self, part: str, process: psutil.Process, now_s: float) -> None:
        memory = process.memory_info()
        values = memory.rss / 1e6, (memory.rss - memory.shared) / 1e6, process.num_fds(), process.num_threads()
        for kind, value in zip(KINDS, values, strict=True):
            self.looks[part, kind].append((now_s, value))

    def _said(self, part: str) -> str:
        return (self.home / f"{part}.txt").read_text(errors="replace")[-2000:]

    def complaints(self) -> list[str]:
        """Lines of warnings and errors, of all parts."""
        lines = [f"{part}: {line}" for part in self._parts for line in self._said(part).splitlines()]
        words = ("WARNING", "ERROR", "Traceback")
        return [line for line in lines if any(word in line for word in words) and "overrun" not in line]

    def work(self) -> str:
        """What was done, in words."""
        lines = (self.home / "runs" / "drone" / "metrics.jsonl").read_text().splitlines()
        last = [json.loads(line) for line in lines if '"kind":"round"' in line][-1]
        return f"{last['env_steps_total']} samples, {last['training_steps_total']} training steps, {len(lines)} records"

    def __enter__(self) -> Run:
        for part in ("server", "trainer", "worker"):
            self.start(part)
        return self

    def __exit__(self, *exc: object) -> None:
        for part in reversed(self._parts.values()):
            part.terminate()
        for part in self._parts.values():
            try:
                part.wait(20)
            except subprocess.TimeoutExpired:
                part.kill()


def slope_per_h(points: np.ndarray[Any, Any]) -> float:
    """Theil and Sen's, of rows (seconds, value)."""
    i, j = np.triu_indices(len(points), 1)
    rises, runs = (points[j, column] - points[i, column] for column in (1, 0))
    return float(np.median(rises / runs)) * 3600


def summary(looks: list[tuple[float, float]], warm_up_s: float, mean_of_s: float) -> str:
    """First and last mean, and slope, of what was looked at."""
    means: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for at_s, value in looks:
        if at_s >= warm_up_s:
            means[int(at_s / mean_of_s)].append((at_s, value))
    points = np.array([np.mean(group, axis=0) for _, group in sorted(means.items())])
    if len(points) < 6:
        raise SystemExit("expected six means after the warm-up, at least: --minutes, --warm-up, --mean-of")
    rng = random.Random(0)
    drawn = [points[sorted(rng.sample(range(len(points)), len(points) // 2))] for _ in range(100)]
    low, high = np.quantile([slope_per_h(some) for some in drawn], (0.05, 0.95))
    first, last = points[0, 1], points[-1, 1]
    return f"{slope_per_h(points):+.2f} an hour ({low:+.2f} to {high:+.2f}), from {first:.1f} to {last:.1f}"


def main() -> None:
    parser = Options(__doc__, minutes=0.4, warm_up=0.1, mean_of=2.0, visits=10.0, transports=["zmq"])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=8.0, help="minutes of them that do not count")
    parser.add_argument("--mean-of", type=float, default=20.0, help="seconds in a mean")
    parser.add_argument("--visits", type=float, default=60.0, help="seconds between the second worker's comings")
    parser.add_argument("--transports", nargs="+", default=["zmq", "tlspyo"])
    options = parser.parse()
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = []
        for transport in options.transports:
            (home / transport).mkdir()
            runs.append(stack.enter_context(Run(transport, home / transport)))
        started_s, visited_s = time.monotonic(), 0.0
        while (now_s := time.monotonic() - started_s) < options.minutes * 60:
            time.sleep(LOOK_EVERY_S)
            for run in runs:
                run.look(now_s)
                if now_s > visited_s + options.visits:
                    run.visit()
            if now_s > visited_s + options.visits:
                visited_s = now_s
        result: dict[str, Any] = {"minutes": options.minutes, "of them warm-up": options.warm_up}
        for run in runs:
            for (part, kind), looks in run.looks.items():
                result[f"{run.transport}: {part}, {kind}"] = summary(looks, options.warm_up * 60, options.mean_of)
            result[f"{run.transport}: done"] = run.work()
            result[f"{run.transport}: complaints"] = run.complaints()[:10]
    finish(result)


if __name__ == "__main__":
    main()
