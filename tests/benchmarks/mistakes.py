"""How soon a mistake is named: each of `tests/cli/mistakes.py`, in a process of its own, started as
by a user.

    python tests/benchmarks/mistakes.py [--only WORDS]

Measured from the start of the process to the line with the cause. With the key of another server, a
line raises the doubt at once and the worker gives up a minute later: the first line counts. If a
mistake needs a patch in the command's process (a missing package), the time includes pytest's
import.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from _harness import TESTS, benchmark

sys.path[:0] = [str(TESTS), str(TESTS / "cli")]

import mistakes  # noqa: E402
import pytest  # noqa: E402
from small_disk import small_disk  # noqa: E402

ENDS_WITHIN_S = 120.0
PATCHED = (
    "import sys, pytest, mistakes; from tmrl_like.cli import main; "
    "mistakes.MISTAKES[sys.argv[1]].patch(pytest.MonkeyPatch()); sys.exit(main(sys.argv[2:]))"
)


@contextlib.contextmanager
def prepared(mistake):
    """Prepare what a mistake needs, in a folder and a home of its own."""
    with contextlib.ExitStack() as until_end, pytest.MonkeyPatch.context() as patch:
        folder = Path(until_end.enter_context(tempfile.TemporaryDirectory()))
        for variable in ("HOME", "USERPROFILE"):
            patch.setenv(variable, str(folder / "home"))
        for variable in ("TMRL_LIKE_HOME", "TMRL_LIKE_RUN"):
            patch.delenv(variable, raising=False)
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS.parent), *sys.path[:2]]))

        def full_disk():
            return until_end.enter_context(small_disk(folder / "disk"))

        with contextlib.redirect_stdout(sys.stderr):
            mistake.prepare(mistakes.Machine(folder, patch, full_disk, until_end))
        yield


def make(name):
    """Make a mistake; return the seconds until the line with the cause (infinite without one, or
    with a wrong exit code), and whether there was a traceback.
    """
    mistake = mistakes.MISTAKES[name]
    is_doubted = mistake.patch is mistakes.gives_up_soon
    is_patched = mistake.patch is not mistakes.Mistake.patch and not is_doubted
    command = ["-c", PATCHED, name] if is_patched else ["-m", "tmrl_like"]
    program = [sys.executable, *command, *mistake.arguments]
    seconds, lines = float("inf"), []
    with prepared(mistake):
        started = time.perf_counter()
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            program, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, encoding="utf-8"
        )
        timer = threading.Timer(ENDS_WITHIN_S, process.kill)
        timer.start()
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line)
            if seconds == float("inf") and ("WARNING" if is_doubted else mistake.said) in line:
                seconds = time.perf_counter() - started
                if is_doubted:
                    process.kill()
        code = process.wait()
        timer.cancel()
    if not is_doubted and code != mistake.code:
        seconds = float("inf")
    if seconds == float("inf"):
        print(
            f"{name}: exit code {code}, expected {mistake.code}; said {lines[-3:]}",
            file=sys.stderr,
            flush=True,
        )
    return seconds, any("Traceback" in line for line in lines)


def measure(options):
    made = {name: make(name) for name in mistakes.MISTAKES if options.only in name}
    seconds = [took_s for took_s, _ in made.values()]
    slowest = max(made, key=lambda name: made[name][0])
    yield {
        "what": f"until one of {len(made)} mistakes is named, s",
        "ours": seconds,
        "goal": 5.0,
        "slowest": slowest,
    }
    yield {
        "what": "mistakes that take over 5 s",
        "ours": sum(took_s > 5.0 for took_s in seconds),
        "goal": 0,
    }
    yield {
        "what": "… with a traceback",
        "ours": sum(traceback for _, traceback in made.values()),
        "goal": 0,
    }


if __name__ == "__main__":
    benchmark(__doc__, measure, only="", quick={"only": "an option"})
