"""Files that appear complete or not at all."""

import os
import time
from pathlib import Path

import pytest

from tmrl_like.base.files import disk, link_atomically, remove_drafts, write_atomically


@pytest.mark.skipif(os.name != "posix", reason="modes are a POSIX matter")
def test_private_files_are_private(tmp_path):
    write_atomically(tmp_path / "secret", b"x", private=True)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


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
    now = time.time() + jump_s
    monkeypatch.setattr(time, "time", lambda: now)
    remove_drafts(tmp_path)
    assert "".join(str(i) for i, draft in enumerate(drafts) if draft.exists()) == left
