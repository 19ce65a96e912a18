"""Test videos while a run trains: in a process of its own, so that no control loop waits for a picture.

It is a `tmrl-like test --video` of the newest policy in an environment of its own, beside the trainer: a worker would
have to call `render` in the thread that steps its environment. What there is once only, a robot or a game's window,
cannot be filmed that way; it is refused before its first reset.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from tmrl_like.base.text import clock
from tmrl_like.base.threads import start_thread
from tmrl_like.cli.supervise import Family
from tmrl_like.errors import ShortageError

log = logging.getLogger("tmrl_like.trainer")

_LOOK_S = 0.25


class Filming:
    """Films one test episode of the newest policy every so often, one at a time. Use it as a context manager."""

    def __init__(
        self, experiment: list[str], policy: Path, folder: Path, every_minutes: float, trained_s: Callable[[], float]
    ) -> None:
        """Begin.

        Args:
            experiment: as a command line names it.
            policy: the file of the newest policy.
            folder: where the videos go, each named after the minutes of training.
            every_minutes: of training.
            trained_s: seconds of training so far.
        """
        self._command = ["test", *experiment, "--policy", str(policy), "--episodes", "1"]
        self._folder = folder
        self._every_s = 60.0 * every_minutes
        self._trained_s = trained_s
        self._closing = threading.Event()
        self._thread = start_thread(self._run, "tmrl-filming")

    def _run(self) -> None:
        due_s = (self._trained_s() // self._every_s + 1) * self._every_s
        while not self._closing.wait(_LOOK_S):
            if (now_s := self._trained_s()) < due_s:
                continue
            due_s = (now_s // self._every_s + 1) * self._every_s
            self._folder.mkdir(parents=True, exist_ok=True)
            file = self._folder / f"{now_s / 60:07.1f}-minutes.mp4"
            try:
                with Family() as family:
                    child = family.start("video", [*self._command, "--video", str(file)])
                    lower = 10 if os.name == "posix" else psutil.BELOW_NORMAL_PRIORITY_CLASS  # type: ignore[attr-defined]
                    psutil.Process(child.process.pid).nice(lower)
                    while child.exit_code is None:
                        if self._closing.wait(_LOOK_S):
                            return
            except ShortageError as error:
                log.warning("no test video this time: %s", error)
                continue
            if child.exit_code:
                log.warning("no test videos any more: %s", child.cause())
                return
            log.info("filmed the policy of %s of training: %s", clock(now_s), file)

    def __enter__(self) -> Filming:
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        self._thread.join()
