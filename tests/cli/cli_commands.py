"""Commands as separate processes, which end with the test."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil
from kit.ports import free_port
from kit.waiting import until

HERE = Path(__file__).parent
TINY = str(HERE / "tiny.yaml")
PORT = free_port()
DEADLINE_S = 60.0


def words(*typed):
    """Return the words of a command line given in pieces; TINY stands for the experiment."""
    pieces = (shlex.split(part) if isinstance(part, str) else [str(part)] for part in typed)
    meant = (word.replace("TINY", TINY) for piece in pieces for word in piece)
    return [word.replace("PORT", str(PORT)) for word in meant]


def rows_in(out):
    """Return the words of each line, without empty lines."""
    return [line.split() for line in out.splitlines() if line.split()]


def summary_of(out):
    """Return the words of the line that `tmrl-like test` printed about all episodes."""
    (row,) = [row for row in rows_in(out) if "±" in row and "mean" not in row]
    return row


class Command:
    """A running `tmrl-like …`, perhaps started through a `module`; its output goes to a file."""

    def __init__(self, arguments, folder, module=()):
        self._file = folder / f"output-{time.monotonic_ns()}.txt"
        with self._file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *module, "tmrl_like", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONUNBUFFERED": "1"},
                cwd=folder,
            )

    @property
    def output(self):
        return self._file.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words):
        """Wait until the output contains `words`; return that line."""

        def is_said():
            assert words in self.output or self.process.poll() is None, (
                f"ended without {words!r}:\n{self.output}"
            )
            return words in self.output

        until(is_said, repr(words), DEADLINE_S)
        return next(line for line in self.output.splitlines() if words in line)

    def ends(self):
        """Wait for the end; return the exit code."""
        return self.process.wait(DEADLINE_S)

    def family(self):
        """Return all processes that the command has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, name):
        """Return the process of one of the command's parts."""
        return next(p for p in self.family() if name in p.cmdline())

    def kill(self):
        """Kill the command and all that it started, if it is alive."""
        if self.process.poll() is None:
            for process in (*self.family(), self.process):
                process.kill()
            self.process.wait()
