"""How long `tmrl-like worker` takes from its start to its first step, and the memory that it needs.

    python tests/benchmarks/worker_start.py [--repeats 5]

The environment is the drone's, the actor one that ships. The floor is a bare Python that makes the environment
and steps it. Both start as processes, in turn. Memory is that of a process and its children, two seconds after the
first step: shared pages in parts (PSS; where the system does not know it, USS), and resident.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from _common import finish, median
from _first_step import SAYS

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "config" / "drone.yaml"
BARE = (
    "from _first_step import StepsFirst as E; e = E(); e.reset(); [e.step(e.action_space.sample()) for _ in range(99)]"
)
SETTLES_S = 2.0


def memory_of(process: psutil.Process) -> tuple[float, float]:
    """What is shared in parts, and what is resident."""
    parts = [part.memory_full_info() for part in (process, *process.children(recursive=True))]
    return sum(getattr(info, "pss", 0) or info.uss for info in parts) / 1e6, sum(info.rss for info in parts) / 1e6


def start(command: list[str], home: str) -> tuple[float, float, float]:
    """Seconds until the first step, and both kinds of memory in MB."""
    environment = {**os.environ, "TMRL_LIKE_HOME": home, "PYTHONPATH": str(HERE), "PYTHONPYCACHEPREFIX": home}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled in the first run, as what is installed is
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != SAYS:
            raise RuntimeError(process.communicate()[1])
        seconds = time.perf_counter() - started
        time.sleep(SETTLES_S)
        return seconds, *memory_of(psutil.Process(process.pid))
    finally:
        process.terminate()
        process.communicate(timeout=20)


def worker(home: str) -> tuple[float, float, float]:
    more = ["--env.class_path", "_first_step.StepsFirst", "--server.port", "1"]
    return start([sys.executable, "-m", "tmrl_like", "worker", str(CONFIG), *more], home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as home:
        first_s = worker(home)[0]  # makes the keys, and compiles
        measured = [(*worker(home), *start([sys.executable, "-c", BARE], home)) for _ in range(repeats)]
    seconds, memory_mb, resident_mb, *floor = map(list, zip(*measured, strict=True))
    floor_s, floor_mb, floor_resident_mb = map(median, floor)
    finish(
        {
            "worker_start_first_time_s": first_s,
            "worker_start_to_first_step_s": median(seconds),
            "worker_start_to_first_step_max_s": max(seconds),
            "floor_bare_environment_s": floor_s,
            "goal_s": 0.5,
            "worker_memory_mb": median(memory_mb),
            "beyond_the_environment_mb": median(memory_mb) - floor_mb,
            "worker_resident_mb": median(resident_mb),
            "resident_beyond_the_environment_mb": median(resident_mb) - floor_resident_mb,
            "goal_mb": 60,
        }
    )


if __name__ == "__main__":
    main()
