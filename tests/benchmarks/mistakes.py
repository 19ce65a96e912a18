"""How soon a mistake is named: each of `tests/cli/mistakes.py`, in a process of its own as a user starts it.

    python tests/benchmarks/mistakes.py [--only WORDS]

Measured from the start of the process to the line with the cause, and as CPU time to its end. The key of another server
is doubted in a line at once, and the worker gives up a minute later: there the first line counts. A mistake that needs
a patch of the command's own process (a package that is not there) pays for pytest's import as well.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from _common import Options, finish, median

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "cli")]

import mistakes  # noqa: E402
import pytest  # noqa: E402
from small_disk import small_disk  # noqa: E402

GOAL_S, ENDS_WITHIN_S = 5.0, 120.0
PATCHED = (
    "import sys, pytest, mistakes; from tmrl_like.cli import main; "
    "mistakes.MISTAKES[sys.argv[1]].patch(pytest.MonkeyPatch()); sys.exit(main(sys.argv[2:]))"
)


class Named(NamedTuple):
    """How a mistake ended."""

    seconds: float  # until the line with the cause; infinite: it never came
    cpu_s: float  # of the process until its end, and of those that it started
    is_as_expected: bool  # line and exit code
    has_traceback: bool


def make(name: str) -> Named:
    mistake = mistakes.MISTAKES[name]
    is_doubted = mistake.patch is mistakes.gives_up_soon
    with contextlib.ExitStack() as until_end, pytest.MonkeyPatch.context() as patch:
        folder = Path(until_end.enter_context(tempfile.TemporaryDirectory()))
        for variable in ("HOME", "USERPROFILE"):
            patch.setenv(variable, str(folder / "home"))
        for variable in ("TMRL_LIKE_HOME", "TMRL_LIKE_RUN"):
            patch.delenv(variable, raising=False)
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), *sys.path[:2]]))
        fill = (
            until_end.enter_context(small_disk(folder / "disk")) if mistake.prepare is mistakes.disk_is_full else None
        )
        with contextlib.redirect_stdout(sys.stderr):
            mistake.prepare(mistakes.Machine(folder, patch, lambda: fill, until_end))  # type: ignore[arg-type, return-value]
        is_patched = mistake.patch is not mistakes.Mistake.patch and not is_doubted
        command = ["-c", PATCHED, name] if is_patched else ["-m", "tmrl_like"]
        started, cpu_before_s = time.perf_counter(), cpu_of_children_s()
        process = subprocess.Popen(
            [sys.executable, *command, *mistake.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        until_end.callback(process.wait)
        until_end.callback(process.kill)
        timer = threading.Timer(ENDS_WITHIN_S, process.kill)
        timer.start()
        until_end.callback(timer.cancel)
        seconds, lines = float("inf"), []
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if seconds == float("inf") and ("WARNING" if is_doubted else mistake.said) in line:
                seconds = time.perf_counter() - started
                if is_doubted:
                    break
        if is_doubted:
            process.kill()
        code, cpu_s = process.wait(), cpu_of_children_s() - cpu_before_s
        is_named = seconds < float("inf") and (is_doubted or code == mistake.code)
        said = "" if is_named else f"; exit code {code}, expected {mistake.code}; said {lines[-3:]}"
        print(f"{name}: {seconds:.2f} s, {cpu_s:.2f} s of CPU time{said}", file=sys.stderr, flush=True)
        return Named(seconds, cpu_s, is_named, any("Traceback" in line for line in lines))


def cpu_of_children_s() -> float:
    """CPU time of the processes that have ended; 0 on Windows."""
    times = os.times()
    return times.children_user + times.children_system


def main() -> None:
    parser = Options(__doc__, only="an option")
    parser.add_argument("--only", default="", help="of the mistakes that have these words in their name")
    only = parser.parse().only
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    made = {name: make(name) for name in mistakes.MISTAKES if only in name}
    seconds = {name: named.seconds for name, named in made.items()}
    slowest = sorted(seconds, key=lambda name: -seconds[name])
    finish(
        {
            "mistakes": len(made),
            "median_s": median(list(seconds.values())),
            "slowest_s": seconds[slowest[0]],
            "slowest": slowest[:5],
            "median_cpu_s": median([named.cpu_s for named in made.values()]),
            "most_cpu_s": max(named.cpu_s for named in made.values()),
            "over_5_s": sum(s > GOAL_S for s in seconds.values()),
            "not_as_expected": [name for name, named in made.items() if not named.is_as_expected],
            "with_traceback": sum(named.has_traceback for named in made.values()),
            "load_average_before": load,
            "load_average_after": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        }
    )


if __name__ == "__main__":
    main()
