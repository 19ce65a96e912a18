"""Atomic files: no kill, power cut or full disk leaves them half written, and no reader ever sees
them so.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
import secrets
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError

if TYPE_CHECKING:
    import filelock

_PIECE = bytes(1 << 20)
_NOT_OFFERED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)  # unsupported by the file system
_STALE_S = 60.0
_FORGOTTEN_S = 86_400.0
ATTEMPTS = 50 if os.name == "nt" else 1  # Windows cannot replace an open file


class Disk:
    """Changes to files that must survive a power cut. All go through `disk`, where tests can
    observe their order.

    The system may write changes to the disk in any order, or never, until `sync` has returned for
    the content of a file, or `sync_folder` for the names in a folder. All methods raise OSError.
    """

    def open(self, path: Path, private: bool = False) -> io.FileIO:
        """Create a file, which must not exist, for unbuffered writing.

        `private`: it is readable by its owner only (0600).
        """
        mode = 0o600 if private else 0o666
        return io.FileIO(path, "xb", opener=lambda name, flags: os.open(name, flags, mode))

    def write(self, file: io.FileIO, data: bytes | memoryview) -> None:
        """Write all data at the file's current position."""
        write_whole(file, data)

    def sync(self, file: io.FileIO) -> None:
        """Return once the file's content is on the disk."""
        _sync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """Return once the names in a folder are on the disk.

        Does nothing on Windows, or where folders cannot be synced.
        """
        if sys.platform == "win32":
            return
        descriptor = os.open(path, os.O_RDONLY)
        try:
            _sync(descriptor)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
        finally:
            os.close(descriptor)

    def make_folder(self, path: Path, mode: int = 0o777) -> None:
        """Create a folder and its parents where they are missing, and sync their names to the
        disk.
        """
        if not path.is_dir():
            if path.parent != path:  # else a drive that is not there
                self.make_folder(path.parent)
            path.mkdir(mode, exist_ok=True)
            self.sync_folder(path.parent)

    def rename(self, source: Path, path: Path) -> None:
        """Move a file or folder to `path`, replacing what is there, in one step."""
        os.replace(source, path)

    def link(self, source: Path, path: Path) -> None:
        """Give a file an additional name."""
        os.link(source, path)

    def remove(self, path: Path) -> None:
        """Remove a file, if it exists."""
        path.unlink(missing_ok=True)


disk = Disk()


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":  # its fsync leaves data in the cache of the drive
        import fcntl

        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
        else:
            return
    os.fsync(descriptor)


def write_atomically(
    path: Path, *content: bytes | memoryview, private: bool = False, synced: bool = True
) -> None:
    """Write `content` to a temporary file, flush it to the disk, and move it to `path` in one step.

    Missing folders are created. A power cut leaves the old file or the new one; `disk.sync_folder`
    ensures that it is the new one.

    Args:
        path: the file to write or replace.
        content: pieces of the file, in order.
        private: make it readable by its owner only (0600, where the system has modes).
        synced: flush it to the disk; otherwise the file survives kills, but no power cut.

    Raises:
        OSError: the disk is full, or permission is denied; the old file, if any, is untouched.
    """
    disk.make_folder(path.parent)
    draft = _draft_of(path)
    try:
        with disk.open(draft, private) as file:
            for piece in content:
                disk.write(file, piece)
            if synced:
                disk.sync(file)
        _put_in_place(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(draft)
        raise


@contextlib.contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError in the block into a ConfigError, which says what cannot be written where."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"cannot write {what} to {path}: {one_line(str(error))}") from None


def link_atomically(source: Path, path: Path) -> None:
    """Give a file another name in one step, replacing any file of that name; where links are not
    supported or the folder is missing, copy the file.

    Raises:
        OSError: the disk is full, permission is denied, or there is no such file.
    """
    draft = _draft_of(path)
    try:
        disk.link(source, draft)
    except OSError:
        write_atomically(path, source.read_bytes())
    else:
        _put_in_place(draft, path)
        disk.remove(draft)  # it is still there if both names were the same file already


def _put_in_place(draft: Path, path: Path) -> None:
    for _ in range(ATTEMPTS - 1):
        try:
            disk.rename(draft, path)
        except PermissionError:  # another process is reading the old file
            time.sleep(0.01)
        else:
            return
    disk.rename(draft, path)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def remove_drafts(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in a folder."""
    for draft in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if _is_left(draft, draft.name.split(".")[-3]):
                disk.remove(draft)


def _is_left(draft: Path, pid: str) -> bool:
    """Whether the process with this id has abandoned a draft; raise OSError if the draft is gone.

    A draft is abandoned if it is older than a minute and its process is dead (the age alone could
    come from a clock that jumped), or if it is older than a day, when another process may have the
    id.
    """
    import psutil

    age_s = time.time() - draft.stat().st_mtime
    is_dead = not (pid.isdecimal() and psutil.pid_exists(int(pid)))
    return age_s > (_STALE_S if is_dead else _FORGOTTEN_S)


def reserve(path: Path, size: int) -> None:
    """Create a file of `size` zeros whose disk blocks are allocated: writing to it needs no more
    space.

    Raises:
        OSError: it does not fit, or the file exists already; nothing is left behind.
    """
    with path.open("xb", buffering=0) as file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                for start in range(0, size, len(_PIECE)):
                    write_whole(file, _PIECE[: size - start])
        except OSError:
            file.close()
            path.unlink()
            raise


def write_whole(file: Any, data: bytes | memoryview) -> None:
    """Write all data to an unbuffered file, which may accept it in parts."""
    left = memoryview(data).cast("B")
    while left:
        left = left[file.write(left) :]


def map_file(path: Path) -> mmap.mmap:
    """Map a whole file into memory: what is written to it outlives this process, however it ends.

    Where the system supports it, all pages are loaded at once, so that no first write waits.

    Raises:
        OSError: the file cannot be opened.
        ValueError: the file is empty.
    """
    with path.open("r+b", buffering=0) as file:
        if hasattr(mmap, "MAP_POPULATE"):
            return mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return mmap.mmap(file.fileno(), 0)


def lock_folder(
    folder: Path, within_s: float = 0.0, name: str = "lock"
) -> filelock.BaseFileLock | None:
    """Lock a folder, which is created if missing, for this process.

    Returns None if another process still holds the lock after `within_s`.

    Raises:
        OSError: the folder cannot be created.
    """
    import filelock  # a server needs it for its first keys only

    disk.make_folder(folder)
    lock = filelock.FileLock(folder / name, thread_local=False)
    try:
        lock.acquire(timeout=within_s)
    except filelock.Timeout:
        return None
    return lock
