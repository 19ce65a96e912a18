"""Files that a kill, a full disk or a reader at the wrong moment never leaves half written."""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import time
from pathlib import Path
from typing import Any

_PIECE = bytes(1 << 20)
_ATTEMPTS = 50 if os.name == "nt" else 1  # Windows replaces no file that is open


def write_atomically(path: Path, *content: bytes | memoryview, private: bool = False) -> None:
    """Write `content` beside `path`, flush it to the disk, then put it in place in one step; missing folders are made.

    `private`: readable by its owner only (0600, where the system knows modes).

    Raises:
        OSError: disk full, no permission; the old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = _draft_of(path)
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
        _put_in_place(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def link_atomically(source: Path, path: Path) -> None:
    """Give a file another name in one step, which whatever has that name loses; a copy where there are no links.

    Raises:
        OSError: disk full, no permission, or there is no such file.
    """
    draft = _draft_of(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(source, draft)
    except OSError:
        write_atomically(path, source.read_bytes())
    else:
        _put_in_place(draft, path)
        draft.unlink(missing_ok=True)  # it is still there where the two were one file already


def _put_in_place(draft: Path, path: Path) -> None:
    for _ in range(_ATTEMPTS - 1):
        try:
            os.replace(draft, path)
        except PermissionError:  # somebody reads what is there
            time.sleep(0.01)
        else:
            return
    os.replace(draft, path)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def sync_folder(path: Path) -> None:
    """Have the names in a folder on the disk: what was put in place there outlives a power cut. Not on Windows."""
    if os.name == "nt":  # which lets no one open a folder
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` zeros whose blocks on the disk are its own: writing into it needs no more space.

    Raises:
        OSError: it does not fit, or it exists already; nothing is left behind.
    """
    with path.open("xb", buffering=0) as file:
        try:
            allocate(file, size)
        except OSError:
            file.close()
            path.unlink()
            raise


def allocate(file: Any, size: int) -> None:
    """As `reserve`, in an empty file that is open."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        for start in range(0, size, len(_PIECE)):
            write_whole(file, _PIECE[: size - start])


def write_whole(file: Any, data: bytes | memoryview) -> None:
    """Write all of the data to a file without a buffer, which may take it in parts."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def map_file(path: Path) -> mmap.mmap:
    """A whole file as memory: what is written to it outlives this process, however it ends.

    Its pages are there from the start, where the system can do that: the first write to each does not wait for it.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    with path.open("r+b", buffering=0) as file:
        if hasattr(mmap, "MAP_POPULATE"):
            return mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return mmap.mmap(file.fileno(), 0)
