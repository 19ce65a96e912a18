"""Commands in processes of their own, that end with the test."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

HERE = Path(__file__).parent
TINY = str(HERE / "tiny.yaml")
DEADLINE_S = 60.0


class Command:
    """A running `tmrl-like …`; its output goes to a file."""

    def __init__(self, arguments: tuple[str, ...], folder: Path) -> None:
        self._file = folder / f"output-{time.monotonic_ns()}.txt"
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "PYTHONUNBUFFERED": "1"}
        with self._file.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tmrl_like", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=folder,
            )

    @property
    def output(self) -> str:
        return self._file.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, words: str, within_s: float = DEADLINE_S) -> str:
        """Wait until the output holds `words`; returns the line."""
        deadline = time.monotonic() + within_s
        while words not in self.output:
            assert self.process.poll() is None, f"ended without {words!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {words!r} within {within_s} s:\n{self.output}"
            time.sleep(0.02)
        return next(line for line in self.output.splitlines() if words in line)

    def ends(self, within_s: float = DEADLINE_S) -> int:
        """Wait for the end; returns the exit code."""
        return self.process.wait(within_s)

    def family(self) -> list[psutil.Process]:
        """The processes that it started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def part(self, name: str) -> psutil.Process:
        """The process of one of its parts."""
        return next(p for p in self.family() if name in p.cmdline())
