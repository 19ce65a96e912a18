"""Files that appear whole or not at all."""

import os
import threading
import time

import pytest

from tmrl_like.base.files import link_atomically, remove_drafts, write_atomically


def test_a_reader_never_meets_half_a_file(tmp_path):
    path = tmp_path / "f"
    contents = [bytes([i]) * 200_000 for i in range(2)]
    write_atomically(path, contents[0])
    stop = threading.Event()

    def write():
        i = 0
        while not stop.is_set():
            write_atomically(path, contents[i % 2])
            i += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(path.read_bytes() in contents for _ in range(200))
    finally:
        stop.set()
        writer.join()


@pytest.mark.skipif(os.name != "posix", reason="modes are a POSIX matter")
def test_private_files_are_private(tmp_path):
    write_atomically(tmp_path / "secret", b"x", private=True)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_file_that_somebody_reads_is_replaced_when_he_has_done(tmp_path, monkeypatch):
    replace, refusals = os.replace, [PermissionError("in use"), PermissionError("in use")]

    def busy(source, target):
        if refusals:
            raise refusals.pop()
        replace(source, target)

    monkeypatch.setattr("os.replace", busy)
    with pytest.raises(PermissionError):
        write_atomically(tmp_path / "f", b"old")
    refusals.append(PermissionError("in use"))
    monkeypatch.setattr("tmrl_like.base.files._ATTEMPTS", 3)
    write_atomically(tmp_path / "f", b"new")
    link_atomically(tmp_path / "f", tmp_path / "g")
    assert [(file.name, file.read_bytes()) for file in sorted(tmp_path.iterdir())] == [
        ("f", b"new"),
        ("g", b"new"),
    ]


@pytest.mark.fault(
    "clocks", "the clock jumps ahead while a file is written", "what is about to be written stays"
)
def test_drafts_stay_while_the_process_lives_that_writes_them(tmp_path, monkeypatch):
    mine, dead = (
        tmp_path / f".policy.safetensors.{pid}.0123abcd.tmp" for pid in (os.getpid(), 1 << 30)
    )
    real = time.time
    for jump_s, left in (
        (0.0, {mine, dead}),
        (3600.0, {mine}),
        (-3600.0, {mine, dead}),
        (90_000.0, set()),
    ):
        for draft in (mine, dead):
            draft.touch()
        monkeypatch.setattr(time, "time", lambda jump_s=jump_s: real() + jump_s)
        remove_drafts(tmp_path)
        assert set(tmp_path.iterdir()) == left
