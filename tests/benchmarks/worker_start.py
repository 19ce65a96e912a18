"""How long `tmrl-like worker` takes from its start to its first step, and the memory that it needs.

    python tests/benchmarks/worker_start.py [--repeats 5]

The environment is the drone's, the actor one that ships. The floor is a bare Python that makes the environment
and steps it. Both start as processes, in turn. Memory is looked at two seconds after the first step, of the process
that drives the environment and of its link: what is its own (USS), its part of what it shares (PSS, which counts each
page once; Linux), and what is resident, shared pages whole in each.
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


KINDS = ("uss", "pss", "rss")
Measured = tuple[float, dict[str, float], dict[str, float]]


def memory_mb(processes: list[psutil.Process]) -> dict[str, float]:
    """Of all of them together, by kind."""
    infos = [process.memory_full_info() for process in processes]
    return {kind: sum(getattr(info, kind, 0) for info in infos) / 1e6 for kind in KINDS}


def start(command: list[str], home: str) -> Measured:
    """Seconds until the first step, and the memory of the process and of those that it has started."""
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
        itself = psutil.Process(process.pid)
        return seconds, memory_mb([itself]), memory_mb(itself.children(recursive=True))
    finally:
        process.terminate()
        process.communicate(timeout=20)


def worker(home: str) -> Measured:
    more = ["--env.class_path", "_first_step.StepsFirst", "--server.port", "1"]
    return start([sys.executable, "-m", "tmrl_like", "worker", str(CONFIG), *more], home)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as home:
        first_s = worker(home)[0]  # makes the keys, and compiles
        runs = [(worker(home), start([sys.executable, "-c", BARE], home)) for _ in range(repeats)]
    workers, floors = zip(*runs, strict=True)
    result = {
        "worker_start_first_time_s": first_s,
        "worker_start_to_first_step_s": median([run[0] for run in workers]),
        "worker_start_to_first_step_max_s": max(run[0] for run in workers),
        "floor_bare_environment_s": median([run[0] for run in floors]),
        "goal_s": 0.5,
        "goal_both_beyond_the_environment_mb": 60,
    }
    for kind in KINDS:
        own_mb, link_mb, floor_mb = (
            median([run[part][kind] for run in of]) for part, of in ((1, workers), (2, workers), (1, floors))
        )
        result[f"environment_process_{kind}_mb"] = own_mb
        result[f"link_process_{kind}_mb"] = link_mb
        result[f"floor_bare_environment_{kind}_mb"] = floor_mb
        result[f"both_beyond_the_environment_{kind}_mb"] = own_mb + link_mb - floor_mb
    finish(result)


if __name__ == "__main__":
    main()
