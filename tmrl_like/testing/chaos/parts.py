"""A process under test: started, killed, frozen, started again, and nothing left of it at the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tmrl_like.errors import MissingExtraError

_END_WITHIN_S = 5.0
_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
_IMPORTED_ONCE = ("tmrl_like.worker.worker", "tmrl_like.trainer.trainer", "tmrl_like.testing.chaos")


class Part:
    """One process, by command or by function, that can be killed and started again. Use it as a context manager.

    A function runs in a process that has the package (and torch) imported already, where the system can fork:
    it is up within 0.1 s, and does not outlive the process that made it. A command does, unless it minds that its
    standard input closes, as `tmrl-like … --supervised` does. Kill and freeze reach the process itself and none of
    its children; leaving the context ends all of them.
    """

    def __init__(
        self,
        run: Callable[..., Any] | Sequence[str],
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        log: str | Path | None = None,
    ) -> None:
        """Start it.

        Args:
            run: a function that can be pickled, called with `arguments`; or the command of a Python process, without
                the interpreter, e.g. `["-m", "tmrl_like", "worker", "experiment.yaml"]`.
            arguments: of the function.
            environment: variables on top of this process' own.
            log: file that standard output and standard error are appended to; None: this process' own.

        Raises:
            MissingExtraError: psutil is not installed.
        """
        _psutil()
        self._run = run
        self._arguments = arguments
        self._environment = dict(environment or {})
        self._log = None if log is None else Path(log)
        self._family: set[Any] = set()  # every process of this part that was ever seen, as psutil sees it
        self._process: _Function | _Command
        self.starts = 0
        self.start()

    def start(self) -> None:
        """Start it (again). Returns at once; it may not be ready yet."""
        kind = _Function if callable(self._run) else _Command
        self._process = kind(self._run, self._arguments, self._environment, self._log)
        self.starts += 1

    @property
    def pid(self) -> int:
        """Of the main process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs (or is frozen)."""
        return self._process.exit_code() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.exit_code()

    def kill(self) -> None:
        """End the main process at once, with no chance to tidy up (SIGKILL, TerminateProcess)."""
        self.look()
        self._process.kill()
        self._process.wait(_END_WITHIN_S)

    def restart(self) -> None:
        """Kill and start."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop the main process where it stands (SIGSTOP; on Windows its threads are suspended)."""
        self._main().suspend()

    def thaw(self) -> None:
        """Let it go on."""
        self._main().resume()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; returns the exit code, None if it still runs."""
        return self._process.wait(timeout_s)

    def rss_bytes(self) -> int:
        """Memory of the main process and its children that is in RAM."""
        self.look()
        total = 0
        for process in self._alive():
            with contextlib.suppress(_psutil().Error):
                total += process.memory_info().rss
        return total

    def look(self) -> None:
        """Take note of the children that the main process has now."""
        with contextlib.suppress(_psutil().Error):
            main = self._main()
            self._family.update([main, *main.children(recursive=True)])

    def left_behind(self) -> list[int]:
        """Process ids of children that still run although the main process is gone."""
        return [] if self.alive else sorted(process.pid for process in self._alive())

    def close(self) -> None:
        """End the main process and its children. Twice is fine."""
        self.kill()
        for process in self._alive():
            with contextlib.suppress(_psutil().Error):
                process.kill()
        _psutil().wait_procs(self._family, _END_WITHIN_S)
        self._family.clear()

    def __enter__(self) -> Part:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _main(self) -> Any:
        return _psutil().Process(self.pid)

    def _alive(self) -> list[Any]:
        zombie = _psutil().STATUS_ZOMBIE
        alive = []
        for process in self._family:
            with contextlib.suppress(_psutil().Error):
                if process.is_running() and process.status() != zombie:
                    alive.append(process)
        return alive


class _Command:
    def __init__(self, run: Any, _: Any, environment: dict[str, str], log: Path | None) -> None:
        with contextlib.ExitStack() as stack:
            stream = None if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, *run],
                env=os.environ | environment,
                stdin=subprocess.PIPE,
                stdout=stream,
                stderr=stream,
            )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            assert self._process.stdin is not None
            self._process.stdin.close()
        return self._process.poll()


class _Function:
    def __init__(self, run: Any, arguments: Any, environment: dict[str, str], log: Path | None) -> None:
        context: Any = multiprocessing.get_context(_METHOD)
        if _METHOD == "forkserver":
            context.set_forkserver_preload([*_IMPORTED_ONCE])
        self._process = context.Process(target=_run_part, args=(run, arguments, os.environ | environment, log))
        self._process.start()
        self.pid: int = self._process.pid

    def exit_code(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout_s: float) -> int | None:
        self._process.join(timeout_s)
        return self.exit_code()


def _run_part(run: Any, arguments: Any, environment: dict[str, str], log: Path | None) -> None:
    """In the part's process: set up what the parent asked for, and end with the parent."""
    os.environ.clear()  # of the process that all parts are forked from
    os.environ.update(environment)
    if log is not None:
        with log.open("ab", buffering=0) as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    run(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _psutil() -> Any:
    try:
        import psutil
    except ImportError:
        raise MissingExtraError("Part needs psutil: pip install psutil") from None
    return psutil
