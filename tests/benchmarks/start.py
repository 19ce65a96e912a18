"""What it takes to import tmrl_like, and to answer `tmrl-like --help`.

    python tests/benchmarks/start.py [--repeats 21]

The floor is a Python that does nothing. All are started as processes, in turn; CPU time says more on a busy machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import psutil
from _common import finish, median, repeat

COMMANDS = {
    "bare_python": ["-c", "pass"],
    "import": ["-c", "import tmrl_like"],
    "help": ["-m", "tmrl_like", "--help"],
}


def starter(command: list[str], cpu: list[float]) -> Callable[[], float]:
    """Starts a command and waits for its end; returns the seconds, and adds those of the CPU to `cpu`."""

    def start() -> float:
        before = psutil.Process().cpu_times()
        started = time.perf_counter()
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        took_s, after = time.perf_counter() - started, psutil.Process().cpu_times()
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
        return took_s

    return start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    cpu: list[list[float]] = [[] for _ in COMMANDS]
    wall = repeat(
        parser.parse_args().repeats, *(starter(c, own) for c, own in zip(COMMANDS.values(), cpu, strict=True))
    )
    result: dict[str, float] = {}
    for name, wall_s, cpu_s in zip(COMMANDS, wall, cpu, strict=True):
        result |= {f"{name}_s": median(wall_s), f"{name}_cpu_s": median(cpu_s)}
    for name, goal_s in (("import", 0.05), ("help", 0.3)):
        for kind in ("", "_cpu"):
            result[f"{name}_beyond_bare{kind}_s"] = result[f"{name}{kind}_s"] - result[f"bare_python{kind}_s"]
        result[f"{name}_goal_s"] = goal_s
    finish(result)


if __name__ == "__main__":
    main()
