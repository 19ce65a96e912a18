"""Files that a kill, a power cut, a full disk or a reader at the wrong moment never leaves half
written.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import filelock

_PIECE = bytes(1 << 20)
_NOT_OFFERED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)  # by a file system
_STALE_S = 60.0
_FORGOTTEN_S = 86_400.0
_ATTEMPTS = 50 if os.name == "nt" else 1  # Windows replaces no file that is open


class Disk:
    """Each change to what is to outlive a power cut: all of them come through `disk`, where tests
    see their order.

    The system may put changes on the disk in any order, or never, until `sync` has returned for
    what is in a file, and `sync_folder` for the names in a folder. All raise OSError.
    """

    def open(self, path: Path, new: bool = False, private: bool = False) -> io.FileIO:
        """A file to be written without a buffer; `private`: a new one is readable by its owner only
        (0600).
        """
        flags = os.O_RDWR | getattr(os, "O_BINARY", 0) | (os.O_CREAT | os.O_EXCL if new else 0)
        mode = 0o600 if private else 0o666
        return io.FileIO(path, "r+b", opener=lambda name, _: os.open(name, flags, mode))

    def write(self, file: io.FileIO, data: bytes | memoryview) -> None:
        """Write all of it, where the file is at."""
        write_whole(file, data)

    def truncate(self, file: io.FileIO, size: int) -> None:
        """Cut a file off, and go on there."""
        file.seek(size)
        file.truncate()

    def sync(self, file: io.FileIO) -> None:
        """Return when what is in the file is on the disk."""
        _sync(file.fileno())

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder are on the disk. Nothing on Windows, or where no folder
        can be synced.
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
        """Make a folder, and those above it, where they are not there; from then on their names are
        on the disk.
        """
        if not path.is_dir():
            self.make_folder(path.parent)
            path.mkdir(mode, exist_ok=True)
            self.sync_folder(path.parent)

    def rename(self, source: Path, path: Path) -> None:
        """Put a file, or a folder, in the place of what is at `path`, in one step."""
        os.replace(source, path)

    def link(self, source: Path, path: Path) -> None:
        """Give a file one more name."""
        os.link(source, path)

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)


disk = Disk()


def _sync(descriptor: int) -> None:
    if sys.platform == "darwin":  # whose fsync leaves it in the cache of the drive
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
    """Write `content` beside `path`, flush it to the disk, then put it in place in one step;
    missing folders are made.

    A power cut leaves the old file or the new one; `disk.sync_folder` makes sure that it is the new
    one. `private`: readable by its owner only (0600, where the system knows modes). Not `synced`:
    it survives kills, and no power cut.

    Raises:
        OSError: disk full, no permission; the old file, if any, is untouched.
    """
    disk.make_folder(path.parent)
    draft = _draft_of(path)
    try:
        with disk.open(draft, new=True, private=private) as file:
            for piece in content:
                disk.write(file, piece)
            if synced:
                disk.sync(file)
        _put_in_place(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.remove(draft)
        raise


def link_atomically(source: Path, path: Path) -> None:
    """Give a file another name in one step, which whatever has that name loses; a copy where there
    are no links.

    Raises:
        OSError: disk full, no permission, or there is no such file.
    """
    draft = _draft_of(path)
    try:
        disk.make_folder(path.parent)
        disk.link(source, draft)
    except OSError:
        write_atomically(path, source.read_bytes())
    else:
        _put_in_place(draft, path)
        disk.remove(draft)  # it is still there where the two were one file already


def _put_in_place(draft: Path, path: Path) -> None:
    for _ in range(_ATTEMPTS - 1):
        try:
            disk.rename(draft, path)
        except PermissionError:  # somebody reads what is there
            time.sleep(0.01)
        else:
            return
    disk.rename(draft, path)


def _draft_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")


def remove_drafts(folder: Path) -> None:
    """Remove what processes that were killed have left in a folder beside what they were about to
    write.
    """
    for draft in folder.glob(".*.tmp"):
        with contextlib.suppress(OSError):
            if is_left(draft, draft.name.split(".")[-3]):
                disk.remove(draft)


def is_left(draft: Path, pid: str) -> bool:
    """Whether the process with this number has left a draft for good; OSError: the draft is gone.

    It is older than a minute, and the process is dead: the clock may have jumped. Or it is older
    than a day: another process may have the number.
    """
    import psutil

    age_s = time.time() - draft.stat().st_mtime
    is_dead = not (pid.isdecimal() and psutil.pid_exists(int(pid)))
    return age_s > (_STALE_S if is_dead else _FORGOTTEN_S)


def reserve(path: Path, size: int) -> None:
    """Make a file of `size` zeros whose blocks on the disk are its own: writing into it needs no
    more space.

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
    left = memoryview(data).cast("B")
    while left:
        left = left[file.write(left) :]


def map_file(path: Path) -> mmap.mmap:
    """A whole file as memory: what is written to it outlives this process, however it ends.

    Its pages are there from the start, where the system can do that: the first write to each does
    not wait for it.

    Raises:
        OSError: it cannot be opened.
        ValueError: it is empty.
    """
    with path.open("r+b", buffering=0) as file:
        if hasattr(mmap, "MAP_POPULATE"):
            return mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return mmap.mmap(file.fileno(), 0)


def lock_folder(
    folder: Path, within_s: float = 0.0, name: str = "lock"
) -> filelock.BaseFileLock | None:
    """Lock a folder for this process; None where another has it, OSError where it cannot be
    made.
    """
    import filelock  # a server locks nothing

    disk.make_folder(folder)
    lock = filelock.FileLock(folder / name, thread_local=False)
    try:
        lock.acquire(timeout=within_s)
    except filelock.Timeout:
        return None
    return lock
