"""Run the history of a seed: the package's own parts with small files, under a world's
scheduler.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import secrets
import shutil
import tempfile
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from kill_lines import Killed
from settling import settle
from world import World

from tmrl_like.base import clocks
from tmrl_like.base.files import disk, lock_folder
from tmrl_like.delivery import (
    folder,
    outbox,
    receiver,
    sample_log,
    sample_store,
    segments,
    source,
)
from tmrl_like.session import conversation, session
from tmrl_like.trainer import checkpoints, fleet, trainer_link
from tmrl_like.worker import link as worker_link


class Broken(AssertionError):
    """A broken promise or an error in the history of a seed."""


@contextlib.contextmanager
def world(seed):
    """Yield the world of a seed, in a folder in memory."""
    root = Path(tempfile.mkdtemp(prefix="simulation.", dir=folder.shared_memory()))
    made = World(seed, root)
    try:
        with _quiet(), contextlib.ExitStack() as patches:
            _put_under(made, patches)
            made.start()
            try:
                yield made
            finally:
                made.close()
                gc.collect()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextlib.contextmanager
def _quiet():
    logger = logging.getLogger("tmrl_like")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)  # formatting unread messages would take half the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # killed processes close nothing
            yield
    finally:
        logger.setLevel(level)


def _put_under(made, patches):
    """Replace the package's clocks, threads, disks and random names by the world's, and make its
    files small.
    """

    def patch(owner, name, value):
        patches.enter_context(mock.patch.object(owner, name, value))

    draw = random.Random(f"names of {made.seed}")
    patch(secrets, "randbits", draw.getrandbits)
    patch(secrets, "token_hex", lambda size: f"{draw.getrandbits(8 * size):0{2 * size}x}")
    patch(disk, "sync_folder", lambda path: None)
    for training in made.trainings:
        if training.power is not None:
            patches.enter_context(training.power)
    clock = SimpleNamespace(time=lambda: made.now, monotonic=lambda: made.running.clock())
    clock.perf_counter = clock.monotonic
    for module in (worker_link, trainer_link, fleet):
        patch(module, "time", clock)
    for name in ("up_s", "unix_s"):
        patch(clocks, name, lambda: made.now)
    patch(session, "start_thread", _no_thread)
    patch(conversation, "unknown_host", lambda addresses: "")
    patch(sample_store, "wait", lambda futures: made.running.beside.work())
    patch(checkpoints, "share", lambda training, ranks: None)

    def held(make, let_go):
        """Have a process that dies let go of what it has made."""

        def make_one(*arguments, **options):
            one = make(*arguments, **options)
            if one is not None and made.running is not None:
                made.running.let_go.append(getattr(one, let_go))
            return one

        return make_one

    patch(sample_log, "FILE_BYTES", 4096)
    patch(sample_log, "FILE_ROWS", 4)
    patch(sample_store, "SMALL_BYTES", 3000)
    patch(sample_store, "SMALL_FILES", 4)
    patch(receiver, "GROUP_BYTES", 20_000)
    for module in (sample_log, source):
        patch(module, "Segment", held(segments.Segment, "close"))
    patch(outbox, "lock_for_reading", held(folder.lock_for_reading, "release"))
    patch(checkpoints, "lock_folder", held(lock_folder, "release"))


def _no_thread(run, name):
    """Return what a session takes for its thread: joining it runs the thread's function. A process
    that is killed in it does nothing more.
    """

    def join(timeout_s):
        run()
        failure = run.__self__._failure
        if isinstance(failure, Killed):
            raise failure

    return SimpleNamespace(join=join, native_id=0)


def live(seed, steps, lines=None, change=None):
    """Run the history of a seed, and return its world.

    `lines` receives a description of each event; `change` is called with the world before its first
    step.

    Raises:
        Broken: a promise was broken, or a part of the package raised; the message says how to
            reproduce it.
    """
    with world(seed) as made:
        made.lines = lines
        if change is not None:
            change(made)
        try:
            for _ in range(steps):
                made.step()
            settle(made)
        except Exception as error:
            again = f"python tests/simulation/simulate.py {seed} --steps {steps} --trace"
            raise Broken(
                f"{again}: in step {made.steps}: {type(error).__name__}: {error}"
            ) from error
    return made
