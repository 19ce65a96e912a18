"""A worker's folder on disk, where its packets outlive its process.

::

    SPOOL/              what the user names; several workers may share it
      WORKER/           the packets of one worker; locked by the process that uses it
        lock
        NUMBER.log      sealed packets, not stored by the trainer yet (`log`)
        NUMBER.unsealed the samples of the packet that is being filled (`unsealed`)
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from urllib.parse import quote, unquote

import filelock

from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.unsealed import UnsealedFiles
from tmrl_like.errors import ConfigError

_SEGMENT_BYTES = 4 << 20
_LOCK_WITHIN_S = 2.0  # a process that was just killed may need a moment to end
_MAX_FOLDER_NAME = 200


class WorkerFolder:
    """The log of one worker, and the packet that is being filled."""

    def __init__(self, path: Path, worker: str, lock: filelock.BaseFileLock, max_bytes: int) -> None:
        """Use `open_folder`, which locks it."""
        self.path = path
        self.worker = worker
        self.max_bytes = max_bytes
        self.log = PacketLog(path, lock, max(1, min(_SEGMENT_BYTES, max_bytes // 4)))
        self.unsealed = UnsealedFiles(path)

    def close(self) -> None:
        """Leave the folder to the next process. Twice is fine."""
        self.unsealed.close()
        self.log.close()


def open_folder(root: Path, name: str | None, max_bytes: int) -> WorkerFolder:
    """Lock a worker's folder.

    Args:
        root: holds the folders of workers; made if it is not there.
        name: the worker's; None: that of the first folder that no process uses, or a new one.
        max_bytes: what the folder may hold.

    Raises:
        ConfigError: a living process uses the folder of this name, or the folder cannot be used at all.
    """
    try:
        if name is None:
            root.mkdir(parents=True, exist_ok=True)
            for path in sorted(path for path in root.iterdir() if path.is_dir()):
                lock = lock_folder(path)
                if lock is not None:
                    return WorkerFolder(path, unquote(path.name), lock, max_bytes)
        name = name or new_name()
        folder = quote(name, safe="").replace(".", "%2E")
        if not 0 < len(folder) <= _MAX_FOLDER_NAME:
            raise ConfigError(f"a worker that spools needs a shorter name than {name:.60}…, or one of plain letters")
        path = root / folder
        lock = lock_folder(path, _LOCK_WITHIN_S)
        if lock is not None:
            return WorkerFolder(path, name, lock, max_bytes)
    except OSError as error:
        raise ConfigError(f"cannot use the spool {root}: {error}; choose another folder, or spool nothing") from None
    raise ConfigError(
        f"another process uses the spool of worker {name} ({path}): end it, or give this worker another name"
    )


def new_name() -> str:
    """A name for a worker or trainer that no other process has."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{secrets.token_hex(2)}"
