"""Several parts as child processes of one: started together, ended together, nothing left behind.

Each child has a process group of its own, so that Ctrl-C reaches only the parent, which then ends
the children in order. Each child knows the parent's process id, and ends when the parent is killed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from tmrl_like.base.children import start_child
from tmrl_like.base.threads import no_process, start_thread
from tmrl_like.metrics.reading import EPOCH, WARM_UP

ERROR_PREFIX = "tmrl-like: error: "
_FOR_PARENT = ("ready", 'episode {"')
_KILL_WAIT_S = 2.0
_READ_WITHIN_S = 1.0
if sys.platform == "win32":
    _ASKS_TO_END = signal.CTRL_BREAK_EVENT
else:
    _ASKS_TO_END = signal.SIGTERM


@dataclass(eq=False)
class Child:
    """A part that runs in a process of its own.

    Attributes:
        role: its name in log and messages.
        process: the child process.
        said: its lines on standard output that are for the parent: "ready …" or "episode {…}".
        last_words: its newest line on standard error, but for a trainer's progress.
        error: its error message, without the prefix.
        is_asked: whether it was asked to end; a part that is asked twice ends at once, without its
            last checkpoint.
        readers: threads that read its output.
    """

    role: str
    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    last_words: str = "it said nothing"
    error: str = ""
    is_asked: bool = False
    readers: list[threading.Thread] = field(default_factory=list)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self.process.poll()

    def cause(self) -> str:
        """Return why it ended, in one line."""
        if self.error:
            return self.error
        code = self.process.returncode
        how = (
            f"by signal {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"with exit code {code}"
        )
        return f"ended {how}: {self.last_words}"


class Family:
    """The child processes of one parent. Use it as a context manager: afterwards no child is
    alive.
    """

    def __init__(self) -> None:
        self.children: list[Child] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def start(self, role: str, arguments: Sequence[str]) -> Child:
        """Start `tmrl-like` with `arguments`.

        Raises:
            ShortageError: the system cannot start another process or thread.
        """
        # python -m imports from the working folder first; `tmrl-like` does not, nor must its parts
        safe = ["-P"] if {"", os.getcwd()}.isdisjoint(sys.path) else []
        command = [sys.executable, *safe, "-m", "tmrl_like", *arguments]
        command += ["--supervised", str(os.getpid())]
        environment = {"PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8:replace"}
        try:
            process = start_child(
                command,
                environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        except OSError as error:
            raise no_process(role, error) from None
        child = Child(role, process)
        self.children.append(child)
        for read in (self._read_output, self._read_errors):
            child.readers.append(start_thread(partial(read, child), f"tmrl-{role}"))
        return child

    def lines(self, wait_s: float) -> Iterator[str]:
        """Yield the children's lines on standard error since the last call; waits up to `wait_s`
        for the first one.
        """
        try:
            yield self._lines.get(timeout=wait_s)
            while True:
                yield self._lines.get_nowait()
        except queue.Empty:
            return

    def wait_for_last_words(self) -> None:
        """Wait until all output of children that have ended is read; at most a second, which is
        enough.
        """
        until = time.monotonic() + _READ_WITHIN_S
        for child in self.children:
            if child.exit_code is not None:
                for reader in child.readers:
                    reader.join(max(0.0, until - time.monotonic()))

    def ask_to_end(self, *children: Child) -> None:
        """Ask children to end, each only once; does not wait."""
        for child in children:
            if child.is_asked:
                continue
            child.is_asked = True
            with contextlib.suppress(OSError, ValueError):
                child.process.send_signal(_ASKS_TO_END)

    def stop(self, *children: Child, within_s: float) -> None:
        """Ask children to end, all at the same time; kill those that are still alive after
        `within_s`.
        """
        self.ask_to_end(*children)
        until = time.monotonic() + within_s
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.0, until - time.monotonic()))
            _end_group(child.process)

    def __enter__(self) -> Family:
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill all children that are still alive."""
        for child in self.children:
            _end_group(child.process)
        self.wait_for_last_words()

    def _read_output(self, child: Child) -> None:
        assert child.process.stdout is not None
        with contextlib.suppress(ValueError, OSError), child.process.stdout as stream:
            for line in stream:
                if line.startswith(_FOR_PARENT):  # the user's code may also print
                    child.said.append(line.rstrip("\r\n"))

    def _read_errors(self, child: Child) -> None:
        assert child.process.stderr is not None
        with contextlib.suppress(ValueError, OSError), child.process.stderr as stream:
            for line in stream:
                text = line.rstrip("\r\n")
                if text.strip() and not text.startswith((EPOCH, WARM_UP)):
                    child.last_words = text.strip()
                if text.startswith(ERROR_PREFIX):
                    child.error = child.error or text.removeprefix(ERROR_PREFIX)
                self._lines.put(text)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Kill the process and, on POSIX, its whole process group."""
    with contextlib.suppress(OSError):
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_WAIT_S)
