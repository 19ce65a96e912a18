"""Writing files so that a kill, a full disk or a reader at the wrong moment never meets half of one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def write_atomically(path: Path, *content: bytes | memoryview, private: bool = False) -> None:
    """Write `content` beside `path`, flush it to the disk, then put it in place in one step.

    Args:
        path: the final name; missing folders are made.
        content: the whole file, in one or several pieces; they are not joined here.
        private: readable by its owner only (0600, where the system knows modes).

    Raises:
        OSError: disk full, no permission; the old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(
            draft,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0),
            0o600 if private else 0o666,
        )
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise
