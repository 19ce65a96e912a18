"""A worker's folder, in which the entries of its control loops outlive its processes.

::

    SPOOL/              chosen by the user; several workers may share it
      WORKER/           the entries of one worker
        worker.lock     held by the process that drives the environment
        lock            held by the process that sends
        INCARNATION-NUMBER.entries   entries that the trainer has not stored (`segments`)

Without a spool the folder is a private one in the machine's shared memory: it outlives either of
the two processes, but not both.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from pathlib import Path
from urllib.parse import quote, unquote

import filelock

from tmrl_like.base.files import lock_folder
from tmrl_like.base.text import one_line
from tmrl_like.delivery.segments import SUFFIX, incarnations_in
from tmrl_like.errors import ConfigError, expect
from tmrl_like.wire.messages import MAX_NAME

log = logging.getLogger("tmrl_like.delivery")

_WRITER, _READER = "worker.lock", "lock"
_SHARED_MEMORY = Path("/dev/shm")
_PRIVATE = "tmrl_like."  # no worker's folder has a dot in its name
_YOUNG_S = 60.0  # a private folder that was just created may not be locked yet
_MAX_FOLDER_NAME = 200


class WorkerFolder:
    """The folder of one worker, for the process that drives the environment.

    Attributes:
        path: path of the folder.
        worker: the worker's name.
        dead: incarnations of the earlier processes that left entries, oldest first.
        is_private: whether the folder is removed when both processes have ended.
    """

    def __init__(self, path: Path, worker: str, lock: filelock.BaseFileLock) -> None:
        """Use `open_folder` instead, which locks the folder."""
        self.path = path
        self.worker = worker
        self.dead = tuple(incarnations_in(path))
        self.is_private = is_private(path)
        self._lock = lock
        if any(file.suffix != SUFFIX for file in path.glob("*-*")):
            log.warning(
                "samples that another version of tmrl_like left in %s are not sent: run a worker "
                "of that version once, or remove them",
                path,
            )

    def close(self) -> None:
        """Leave the folder to the next process. Calling it twice is fine."""
        self._lock.release()
        leave(self.path)


def open_folder(root: Path | None, name: str | None, within_s: float = 2.0) -> WorkerFolder:
    """Lock a worker's folder in `root`, which is created if missing; None: a private folder.

    Without a name, the first folder that no process uses is taken, or a new one with a new name.
    The folder of a name may stay locked for `within_s`, as a process that was just killed may need
    a moment to end.

    Raises:
        ConfigError: another process uses the folder of this name, or the folder cannot be used at
            all.
    """
    if root is None:
        try:
            return _private_folder(name_of_peer(name))
        except OSError as error:
            raise ConfigError(
                f"cannot use this machine's shared memory: {error}; make room, or set a spool"
            ) from None
    try:
        free = _free_folder(root) if name is None else None
        if free is not None:
            return free
        name = name_of_peer(name)
        folder = _quoted(name)
        if not 0 < len(folder) <= _MAX_FOLDER_NAME:
            raise ConfigError(
                f"a worker that spools needs a shorter name than {name:.60}…, or one of plain "
                "letters"
            )
        path = root / folder
        lock = lock_folder(path, within_s, _WRITER)
        if lock is not None:
            return WorkerFolder(path, name, lock)
    except OSError as error:
        raise ConfigError(
            f"cannot use the spool {root}: {error}; choose another folder, or spool nothing"
        ) from None
    raise ConfigError(
        f"another process uses the spool of worker {name} ({path}): end it, or give this worker "
        "another name"
    )


def _free_folder(root: Path) -> WorkerFolder | None:
    """Lock the first folder that no process uses, if there is one."""
    root.mkdir(parents=True, exist_ok=True)
    for path in sorted(root.iterdir()):
        if not path.is_dir() or path.name != _quoted(unquote(path.name)):
            continue  # such as `lost+found`
        files = [*path.glob("*")]
        if files and not any(file.suffix in (".lock", SUFFIX) for file in files):
            continue  # a folder of the user's
        lock = lock_folder(path, name=_WRITER)
        if lock is not None:
            if not _is_locked(path, _READER):
                return WorkerFolder(path, unquote(path.name), lock)
            lock.release()
    return None


def _quoted(name: str) -> str:
    """Return the name of a worker's folder."""
    return quote(name, safe="").replace(".", "%2E")


def shared_memory() -> Path:
    """Return the parent of private folders: this machine's shared memory, or its temporary
    folder.
    """
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _private_folder(worker: str) -> WorkerFolder:
    root = shared_memory()
    for path in root.glob(f"{_PRIVATE}*"):
        with contextlib.suppress(OSError):  # another user's
            if path.stat().st_mtime < time.time() - _YOUNG_S:
                leave(path)
    path = Path(tempfile.mkdtemp(prefix=_PRIVATE, dir=root))
    lock = lock_folder(path, name=_WRITER)
    assert lock is not None
    return WorkerFolder(path, worker, lock)


def lock_for_reading(path: Path, within_s: float = 5.0) -> filelock.BaseFileLock:
    """Lock a worker's folder for the process that sends; raise ConfigError if another process keeps
    it locked for `within_s`: a sender whose worker was killed first sends what is left.
    """
    lock = lock_folder(path, within_s, _READER)
    if lock is None:
        raise ConfigError(f"another process still sends what is in {path}: end it")
    return lock


def is_private(path: Path) -> bool:
    """Whether a folder is private: it belongs to one worker process and is removed after it."""
    return path.name.startswith(_PRIVATE)


def has_writer(path: Path) -> bool:
    """Whether a process uses this folder to drive an environment."""
    return _is_locked(path, _WRITER)


def _is_locked(path: Path, name: str) -> bool:
    lock = lock_folder(path, name=name)
    if lock is not None:
        lock.release()
    return lock is None


def leave(path: Path) -> None:
    """Remove a private folder that no process uses."""
    if (
        is_private(path)
        and path.is_dir()
        and not any(_is_locked(path, name) for name in (_WRITER, _READER))
    ):
        shutil.rmtree(path, ignore_errors=True)


def name_of_peer(name: str | None) -> str:
    """Return the name of a worker or trainer; without one, a new one that no other process has.

    Raises:
        ConfigError: the name is too long, or not one line of printable characters.
    """
    name = name or f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"
    is_a_name = len(name) <= MAX_NAME and one_line(name) == name
    expect(is_a_name, "name", name, f"one line of at most {MAX_NAME} printable characters")
    return name
