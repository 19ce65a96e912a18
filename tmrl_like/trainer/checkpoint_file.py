"""Checkpoints as files, without torch. Each describes itself, and the previous one is kept.

`checkpoint-N` is a line of JSON, its `Head`, followed by the body. A kill or a power cut at any
moment leaves the newest complete checkpoint, because a file gets its name only when all of it is on
the disk.
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
    """The description at the beginning of a checkpoint.

    Attributes:
        format: of the file.
        number: counts the checkpoints.
        run: the training that it belongs to; samples of another training are never combined with
            its agent.
        training_steps: done when it was taken.
        epoch: epochs done when it was taken.
        elapsed_s: duration of the training until then.
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
    """What a checkpoint keeps of a training besides what was learnt and counted.

    Attributes:
        version: of the policy published last; 0: none was.
        receipts: name the workers' entries that the memory holds.
        uncounted_samples: by how much `total_samples` exceeds the samples that were ever stored;
            None: by the size of the data set.
        earlier: newest version of the trainings that the run had before; 0: this is the first.
    """

    version: int = 0
    receipts: tuple[Receipt, ...] = ()
    uncounted_samples: int | None = None
    earlier: int = 0


class Checkpoint(NamedTuple):
    """A checkpoint file that is complete and undamaged.

    Attributes:
        head: its first line.
        body: what follows.
        damaged: the newer ones, which are damaged.
    """

    head: Head
    body: memoryview
    damaged: tuple[Path, ...] = ()


def write_checkpoint(folder: Path, head: Head, body: bytes) -> None:
    """Write the next file, and remove all but this and the previous one. Number, size and checksum
    are filled in.

    Raises:
        OSError: disk full, no permission; existing files stay.
    """
    before = _files_in(folder)
    head.number = max(before, default=0) + 1
    head.size_bytes = len(body)
    head.checksum = zlib.crc32(body)
    write_atomically(folder / f"{_PREFIX}{head.number}", checked_json(head) + b"\n", body)
    disk.sync_folder(folder)
    for path in list(before.values())[:-1]:
        with contextlib.suppress(OSError):  # still open somewhere; removed with the next checkpoint
            disk.remove(path)
    remove_drafts(folder)


def read_newest(folder: Path) -> Checkpoint | None:
    """Read the newest undamaged checkpoint, or return None if there is none. Newer, damaged ones
    are reported in the log.

    Raises:
        CheckpointError: all checkpoints are damaged, or the newest has another format.
    """
    damaged: dict[int, Path] = {}
    why = ""
    for number, path in reversed(_files_in(folder).items()):
        try:
            found = _read(path)
        except (OSError, ValueError) as error:
            damaged[number] = path
            why = why or one_line(error, 200)
            continue
        if found.head.format != FORMAT:
            raise CheckpointError(
                f"the checkpoint in {folder} has format {found.head.format}, and this tmrl_like "
                f"reads {FORMAT}: go on with the version that wrote it, or start over (run "
                "--fresh, or another --run_name)"
            )
        if damaged:
            log.warning(
                "checkpoint %d in %s is damaged (%s): going on from checkpoint %d, of training "
                "step %d",
                max(damaged),
                folder,
                why,
                number,
                found.head.training_steps,
            )
        return found._replace(damaged=tuple(damaged.values()))
    if damaged:
        raise CheckpointError(
            f"checkpoint {max(damaged)} in {folder} is damaged ({why}), and there is no other one: "
            "move the folder away to start over"
        )
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove all checkpoints, the newest last. If this raises OSError, the newest still exists."""
    for path in _files_in(folder).values():
        disk.remove(path)
        disk.sync_folder(folder)


def _files_in(folder: Path) -> dict[int, Path]:
    """Return the files by number, the oldest first."""
    found = [(path.name.removeprefix(_PREFIX), path) for path in folder.glob(f"{_PREFIX}*")]
    return dict(
        sorted((int(name), path) for name, path in found if name.isdecimal() and path.is_file())
    )


def _read(path: Path) -> Checkpoint:
    """Read one file. Raises OSError or ValueError if it is damaged."""
    data = path.read_bytes()
    end = data.find(b"\n", 0, _LONGEST_HEAD)
    head = read_checked(data[: max(0, end)], Head)
    body = memoryview(data)[end + 1 :]
    if head.format == FORMAT and (len(body), zlib.crc32(body)) != (head.size_bytes, head.checksum):
        raise ValueError("its checksum does not match")
    return Checkpoint(head, body)
