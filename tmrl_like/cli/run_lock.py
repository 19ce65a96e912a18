"""Which processes of this machine use a run's folder. A `run` or a `trainer` owns it, one at a time.

Each process that uses a run holds a lock on a file in `RunPaths.users` that is named after it: part, process and time.
The system frees the lock when the process ends, however it ends; a file that nobody holds means nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import filelock

from tmrl_like.config.paths import RunPaths
from tmrl_like.errors import ConfigError

log = logging.getLogger("tmrl_like.run")

_OWNERS = ("run", "trainer")
_TURN_S = 10.0


@contextlib.contextmanager
def use_run(paths: RunPaths, part: str, *, supervised: bool = False, alone: bool = False) -> Iterator[None]:
    """Use a run's folder in the `with` block.

    Args:
        paths: of the run.
        part: the command; `run` and `trainer` own the folder, others share it.
        supervised: started by the `run` that owns the folder.
        alone: the folder will be renamed, so nobody else may use it.

    Raises:
        ConfigError: another process uses it that this one cannot share it with.
    """
    refused = ("",) if alone else _OWNERS if part in _OWNERS and not supervised else ()
    with contextlib.ExitStack() as stack:
        try:
            paths.users.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(paths.users / ".lock", timeout=_TURN_S):  # so that two do not look at once
                for file in paths.users.glob("*-*"):
                    if not _forget_if_free(file) and file.name.startswith(refused):
                        part, process, since = file.name.split("-", 2)
                        raise ConfigError(
                            f"the run {paths.run_name} is in use by `tmrl-like {part}`, process {process}, since "
                            f"{since.replace('.', ':')}: end it first, or choose another name with --run_name"
                        )
                mine = paths.users / f"{part}-{os.getpid()}-{time.strftime('%Y-%m-%d %H.%M.%S')}"
                stack.callback(_forget_if_free, mine)
                stack.enter_context(filelock.FileLock(mine, timeout=0, thread_local=False))
        except OSError as error:
            log.warning("the folder of the run %s is not protected from another run: %s", paths.run_name, error)
        yield


def _forget_if_free(file: Path) -> bool:
    """Remove the file of a process that has ended; False if it is alive."""
    lock = filelock.FileLock(file)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return False
    lock.release()
    with contextlib.suppress(OSError):
        file.unlink()
    return True
