"""Which processes on this machine use a run's folder. One `run` or trainer at a time owns it.

Each process that uses a run holds a lock on a file of its own in `RunPaths.users`, named after
part, process, time and a random number. The system frees the lock when the process ends, however it
ends; a file without a lock means nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from tmrl_like.config.paths import RunPaths
from tmrl_like.errors import ConfigError

log = logging.getLogger("tmrl_like.config")

LISTENS = "worker that listens"  # to `tmrl-like signal`

_OWNERS = ("run", "trainer")
_TURN_S = 30.0


@contextlib.contextmanager
def use_run(
    paths: RunPaths, part: str, *, supervised: bool = False, alone: bool = False
) -> Iterator[Callable[[], None]]:
    """Use a run's folder during the `with` block. Yields a function that ends exclusive use
    (`alone`).

    Args:
        paths: of the run.
        part: the command; for a script, likewise "trainer" or "worker". `run` and `trainer` own the
            folder, others share it.
        supervised: this process was started by the `run` that owns the folder.
        alone: the folder will be renamed. No other process may use it, and those that want to wait
            until this is done.

    Raises:
        ConfigError: another process uses it, and this one cannot share it.
    """
    refused = ("",) if alone else _OWNERS if part in _OWNERS and not supervised else ()
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as turn:
        try:
            paths.users.mkdir(parents=True, exist_ok=True)
            # so that only one process at a time looks at the users
            turn.enter_context(filelock.FileLock(paths.users / ".lock", timeout=_TURN_S))
            for other in sorted(_users(paths)):  # a `run` before its parts
                if other.startswith(refused):
                    name, process, since, _ = other.split("_")
                    raise ConfigError(
                        f"the run {paths.run_name} is in use by process {process} ({name}, since "
                        f"{since.replace('.', ':')}): end it first, or choose another run_name"
                    )
            since = time.strftime("%Y-%m-%d %H.%M.%S")
            # processes of two containers may have the same number
            mine = paths.users / f"{part}_{os.getpid()}_{since}_{secrets.token_hex(8)}"
            stack.callback(_forget_if_free, mine)
            stack.enter_context(filelock.FileLock(mine, timeout=0, thread_local=False))
        except filelock.Timeout:
            raise ConfigError(
                f"another process has been about to use the run {paths.run_name} for {_TURN_S:g} "
                "s: end it first"
            ) from None
        except OSError as error:
            log.warning(
                "the folder of the run %s is not protected from another run: %s",
                paths.run_name,
                error,
            )
        if not alone:
            turn.close()
        yield turn.close


def is_in_use(paths: RunPaths, parts: str | tuple[str, ...] = _OWNERS) -> bool:
    """Whether one of these parts, by default an owner, uses the run now."""
    try:
        if not paths.users.is_dir():
            return False
        with filelock.FileLock(paths.users / ".lock", timeout=1.0):
            return any(user.startswith(parts) for user in _users(paths))
    except filelock.Timeout:
        return True
    except OSError:
        return False


def _users(paths: RunPaths) -> list[str]:
    """Return the names of the locked files; remove the others."""
    return [file.name for file in paths.users.glob("*_*") if not _forget_if_free(file)]


def _forget_if_free(file: Path) -> bool:
    """Remove the file of a process that has ended; return False if the process is alive."""
    lock = filelock.FileLock(file)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return False
    lock.release()
    with contextlib.suppress(OSError):
        file.unlink()
    return True
