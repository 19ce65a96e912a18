"""Checkpoints as files, without torch: each describes itself, and the one before it is kept.

`checkpoint-N` is a line of JSON, its `Head`, and the body behind it. A kill or a power cut at any
moment leaves the newest one that is complete: a file has its name when all of it is on the disk.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from tmrl_like.base.checked import checked_json, read_checked
from tmrl_like.base.files import disk, remove_drafts, write_atomically
from tmrl_like.base.text import one_line
from tmrl_like.errors import CheckpointError
from tmrl_like.types import Receipt

log = logging.getLogger("tmrl_like.trainer")

FORMAT = 12
_PREFIX = "checkpoint-"
_LONGEST_HEAD = 10_000


class Head(msgspec.Struct):
    """What a checkpoint says of itself.

    Attributes:
        format: of the file.
        number: counts checkpoints.
        run: which training it belongs to; samples of another one are not joined with its agent.
        training_steps: done when it was taken.
        epoch: how many the training had done.
        elapsed_s: and for how long it had gone on.
        size_bytes: of the body.
        checksum: CRC-32 of the body.
    """

    format: int
    number: int
    run: str = ""
    training_steps: int = 0
    epoch: int = 0
    elapsed_s: float = 0.0
    size_bytes: int = 0
    checksum: int = 0


@dataclass
class Kept:
    """What a checkpoint keeps of a training beside what was learnt and counted.

    Attributes:
        version: of the policy published last; 0: none was.
        receipts: the entries of workers that its memory holds.
        uncounted_samples: `total_samples` is so many more than were ever stored; None: as many as a
            data set has.
    """

    version: int = 0
    receipts: tuple[Receipt, ...] = ()
    uncounted_samples: int | None = None


class Checkpoint(NamedTuple):
    """A file that is whole."""

    head: Head
    body: memoryview
    path: Path


def write_checkpoint(folder: Path, head: Head, body: memoryview) -> None:
    """Write the next file, and remove all but this one and the one before it; number, size and
    checksum are filled in.

    Raises:
        OSError: disk full, no permission; what is there stays.
    """
    before = _files_in(folder)
    head.number = max(before, default=0) + 1
    head.size_bytes, head.checksum = len(body), zlib.crc32(body)
    write_atomically(folder / f"{_PREFIX}{head.number}", checked_json(head) + b"\n", body)
    disk.sync_folder(folder)
    for path in list(before.values())[:-1]:
        with contextlib.suppress(OSError):  # still open somewhere; the next checkpoint tries again
            disk.remove(path)
    remove_drafts(folder)


def read_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; a line of log says where that is not the newest. None:
    there is none.

    Raises:
        CheckpointError: none of those that there are is whole, or the newest has another format.
    """
    damaged, why = 0, ""
    for number, path in reversed(_files_in(folder).items()):
        try:
            found = _read(path)
        except (OSError, ValueError) as error:
            damaged, why = damaged or number, why or one_line(error, 200)
            continue
        if found.head.format != FORMAT:
            raise CheckpointError(
                f"the checkpoint in {folder} has format {found.head.format}, and this tmrl_like "
                f"reads {FORMAT}: go on with the version that wrote it, or start over (run "
                "--fresh, or another --run_name)"
            )
        if damaged:
            line = (
                "checkpoint %d in %s is damaged (%s): going on from checkpoint %d, of training "
                "step %d"
            )
            log.warning(line, damaged, folder, why, number, found.head.training_steps)
        return found
    if damaged:
        raise CheckpointError(
            f"checkpoint {damaged} in {folder} is damaged ({why}), and there is no other one: move "
            "the folder away to start over"
        )
    return None


def put_damaged_aside(newest: Checkpoint) -> None:
    """Rename what is newer than the newest that is whole: else it would be kept as the one before
    the next.
    """
    paths = list(_files_in(newest.path.parent).values())
    for path in paths[paths.index(newest.path) + 1 :]:
        with contextlib.suppress(OSError):
            path.replace(path.with_name(f"damaged-{path.name}"))


def read_head(folder: Path) -> Head | None:
    """What the newest checkpoint that is whole says of itself; raises as `read_newest`."""
    found = read_newest(folder)
    return None if found is None else found.head


def remove_checkpoints(folder: Path) -> None:
    """Give up all that there are, the newest last; OSError: that one is still there."""
    for path in _files_in(folder).values():
        disk.remove(path)
        disk.sync_folder(folder)


def _files_in(folder: Path) -> dict[int, Path]:
    """By number, the oldest first."""
    names = {
        path.name.removeprefix(_PREFIX): path
        for path in folder.glob(f"{_PREFIX}*")
        if path.is_file()
    }
    return {int(name): names[name] for name in sorted(filter(str.isdecimal, names), key=int)}


def _read(path: Path) -> Checkpoint:
    """Read one; OSError, ValueError: it is not whole."""
    data = path.read_bytes()
    end = data.find(b"\n", 0, _LONGEST_HEAD)
    head = read_checked(data[: max(0, end)], Head)
    body = memoryview(data)[end + 1 :]
    if head.format == FORMAT and (len(body), zlib.crc32(body)) != (head.size_bytes, head.checksum):
        raise ValueError("its checksum does not match")
    return Checkpoint(head, body, path)
