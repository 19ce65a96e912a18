"""Files that appear complete or not at all."""

import contextlib
import errno
import mmap
import os
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from tmrl_like.base.files import (
    disk,
    link_atomically,
    lock_folder,
    map_file,
    remove_drafts,
    reserve,
    write_atomically,
    write_whole,
)


def test_a_file_that_somebody_reads_is_replaced_when_he_has_done(tmp_path, monkeypatch):
    replace, refusals = os.replace, [PermissionError("in use")] * 2

    def busy(source, target):
        if refusals:
            raise refusals.pop()
        replace(source, target)

    monkeypatch.setattr("os.replace", busy)
    monkeypatch.setattr("tmrl_like.base.files.ATTEMPTS", 3)
    write_atomically(tmp_path / "f", b"new")
    link_atomically(tmp_path / "f", tmp_path / "g")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {
        "f": b"new",
        "g": b"new",
    }
    refusals += [PermissionError("in use")] * 3
    with pytest.raises(PermissionError):
        write_atomically(tmp_path / "f", b"newer")
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("failure", [OSError("the disk is full"), KeyboardInterrupt("stop")])
@pytest.mark.parametrize("removes", [True, False])
def test_a_write_that_fails_leaves_no_draft_and_says_why(failure, removes, tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "rename", Mock(side_effect=failure))
    if not removes:
        monkeypatch.setattr(disk, "remove", Mock(side_effect=PermissionError("in use")))
    with pytest.raises(type(failure), match=str(failure)):
        write_atomically(tmp_path / "f", b"new")
    assert len([*tmp_path.iterdir()]) == (not removes)


def test_another_name_of_a_file_takes_no_room(tmp_path):
    (tmp_path / "f").write_bytes(b"content")
    link_atomically(tmp_path / "f", tmp_path / "g")
    assert (tmp_path / "g").samefile(tmp_path / "f")


@pytest.mark.parametrize("make", [disk.open, lambda path: reserve(path, 1)])
def test_a_file_that_exists_is_not_made_again(make, tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with pytest.raises(FileExistsError):
        make(file)
    assert file.read_bytes() == b"old"


@pytest.mark.parametrize("make", [disk.make_folder, lambda path: lock_folder(path).release()])
def test_only_the_names_of_new_folders_are_synced(make, tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(disk, "sync_folder", synced.append)
    for _ in range(2):
        make(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


@pytest.mark.skipif(os.name != "posix", reason="folders are synced on POSIX only")
@pytest.mark.parametrize(
    ("code", "outcome"),
    [(errno.EINVAL, contextlib.nullcontext()), (errno.EIO, pytest.raises(OSError, match="sync"))],
)
def test_a_file_system_that_cannot_sync_folders_is_no_error_and_a_disk_that_fails_is(
    code, outcome, tmp_path, monkeypatch
):
    sync = Mock(side_effect=OSError(code, "no sync"))
    monkeypatch.setattr("os.fsync", sync)
    with outcome:
        disk.sync_folder(tmp_path)
    with pytest.raises(OSError, match="descriptor"):  # it is closed
        os.fstat(*sync.call_args.args)


def test_what_a_file_takes_in_parts_is_written_whole():
    written = bytearray()

    def write(data):
        part = bytes(data)[:3]
        written.extend(part)
        return len(part)

    write_whole(Mock(write=write), memoryview(bytes(range(16))).cast("I"))
    assert written == bytes(range(16))


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="there is no posix_fallocate")
def test_a_file_that_does_not_fit_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("os.posix_fallocate", Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        reserve(tmp_path / "f", 1)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("offers", [True, False])
def test_a_reserved_file_is_mapped_at_once_with_its_size(offers, tmp_path, monkeypatch):
    """Also where the system offers no calls for that."""
    if not offers:
        monkeypatch.delattr("os.posix_fallocate", raising=False)
        monkeypatch.delattr("mmap.MAP_POPULATE", raising=False)
    size = (1 << 20) + 5
    reserve(tmp_path / "f", size)
    real = mmap.mmap
    mapped = Mock(side_effect=real)
    monkeypatch.setattr("mmap.mmap", mapped)
    with map_file(tmp_path / "f") as content:
        assert content[:] == bytes(size)
    if hasattr(mmap, "MAP_POPULATE"):
        assert mapped.call_args.args[2] & mmap.MAP_POPULATE


def test_a_folder_on_a_drive_that_is_not_there_cannot_be_made(monkeypatch):
    """As on Windows, where a drive's root may be missing."""

    def no_drive(path, mode, exist_ok):
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "is_dir", lambda path: False)
    monkeypatch.setattr(Path, "mkdir", no_drive)
    with pytest.raises(FileNotFoundError):
        disk.make_folder(Path("/data/runs"))


@pytest.mark.fault(
    "clocks", "the clock jumps ahead while a file is written", "what is about to be written stays"
)
@pytest.mark.parametrize(
    ("jump_s", "left"), [(0.0, "01"), (3600.0, "0"), (-3600.0, "01"), (90_000.0, "")]
)
def test_drafts_stay_while_the_process_lives_that_writes_them(tmp_path, monkeypatch, jump_s, left):
    drafts = [
        tmp_path / f".policy.safetensors.{pid}.0123abcd.tmp" for pid in (os.getpid(), 1 << 30)
    ]
    for draft in drafts:
        draft.touch()
    if os.name == "posix":  # a draft that goes while it is looked at
        (tmp_path / ".gone.1.tmp").symlink_to("nothing")
    (tmp_path / ".of_another_program.tmp").touch()
    now = time.time() + jump_s
    monkeypatch.setattr(time, "time", lambda: now)
    remove_drafts(tmp_path)
    assert "".join(str(i) for i, draft in enumerate(drafts) if draft.exists()) == left
