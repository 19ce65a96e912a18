"""Access to a worker's folder."""

import os
import tempfile

import pytest
from both_ends import Taker

from tmrl_like.delivery import folder as folder_module
from tmrl_like.delivery.folder import lock_for_reading, open_folder
from tmrl_like.errors import ConfigError


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens folders; close those that a test leaves open."""
    folders = []

    def make(name="w", root=tmp_path):
        folders.append(open_folder(root, name))
        return folders[-1]

    yield make
    for folder in folders:
        folder.close()


@pytest.fixture
def shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_module, "shared_memory", lambda: tmp_path)
    return tmp_path


def test_two_workers_of_one_name_do_not_share_a_folder(opened, tmp_path):
    opened("arm")
    with pytest.raises(
        ConfigError, match=r"another process uses the spool of worker arm.*give this worker another"
    ):
        open_folder(tmp_path, "arm", within_s=0.0)


def test_a_worker_without_a_name_takes_the_first_folder_that_is_free(opened):
    first, second = opened(None), opened(None)
    assert first.worker != second.worker
    second.close()
    assert opened(None).worker == second.worker


@pytest.mark.parametrize(("name", "files"), [("lost+found", 0), ("photos", 1)])
def test_a_folder_that_no_worker_has_made_is_not_taken(opened, tmp_path, name, files):
    (tmp_path / name).mkdir()
    for number in range(files):
        (tmp_path / name / f"{number}-1.jpg").touch()
    assert opened(None).worker != name
    assert len(list((tmp_path / name).iterdir())) == files


def test_samples_of_another_version_are_left_alone_and_the_user_is_told(opened, tmp_path, caplog):
    opened("arm").close()
    assert not caplog.messages
    old = tmp_path / "arm" / "00000000000000a1-000001.rows"
    old.write_bytes(b"rows")
    opened("arm")
    assert "another version of tmrl_like left in" in caplog.text
    assert old.read_bytes() == b"rows"


@pytest.mark.parametrize("name", ["arm 1/left", "..", "ä.b%2E"])
def test_any_name_gets_a_folder_of_its_own_and_comes_back(opened, tmp_path, name):
    opened(name).close()
    (folder,) = tmp_path.iterdir()
    assert folder.is_dir()
    assert opened(None).worker == name


@pytest.mark.parametrize("name", ["two\nlines", "\x1b[31mred", "n" * 201, os.fsdecode(b"a\xff")])
def test_a_name_that_no_server_takes_is_refused_at_once(tmp_path, name):
    for root in (None, tmp_path):
        with pytest.raises(ConfigError, match=r"name is .* printable characters"):
            open_folder(root, name)


def test_a_name_too_long_for_a_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="needs a shorter name"):
        open_folder(tmp_path, "ü" * 150)


def test_a_worker_without_a_name_leaves_a_folder_to_who_still_sends_from_it(opened, spool):
    box = spool()
    box.kill_writer()
    assert opened(None).worker != "w"
    box.kill_reader()
    assert opened(None).worker == "w"


def test_one_that_sends_waits_for_the_one_before_and_gives_up_after_a_while(spool):
    box = spool()
    with pytest.raises(ConfigError, match=r"another process still sends what is in .*w: end it"):
        lock_for_reading(box.path, within_s=0.0)


@pytest.mark.parametrize("is_writer_first", [False, True])
def test_a_private_folder_goes_with_the_last_of_the_two_that_use_it(
    spool, shared_memory, is_writer_first
):
    box = spool(root=None)
    (path,) = shared_memory.iterdir()
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o700
    box.log.close()
    closers = [box.folder.close, box.outbox.close]
    for close in closers if is_writer_first else reversed(closers):
        assert path.exists()
        close()
    assert not path.exists()


def test_private_folders_that_nobody_uses_are_removed_when_they_are_not_just_being_made(
    spool, shared_memory
):
    stale, young, used = (spool(root=None) for _ in range(3))
    for box in (stale, young):
        box.kill()
    for box in (stale, used):
        os.utime(box.path, (0, 0))
    spool(root=None)
    assert [box.path.exists() for box in (stale, young, used)] == [False, True, True]


@pytest.mark.parametrize("is_private", [False, True])
def test_what_is_stored_is_gone_without_a_word_when_both_have_left(
    spool, shared_memory, caplog, is_private
):
    box = spool(root=None) if is_private else spool()
    box.fill(1)
    box.deliver(Taker())
    box.close()
    assert not list(box.path.glob("*.entries"))
    assert not caplog.messages


@pytest.mark.parametrize(
    ("is_private", "end"), [(True, "they are lost"), (False, "its next process sends them")]
)
def test_what_is_not_stored_stays_in_a_spool_when_both_have_left_and_what_is_missing_is_said(
    spool, shared_memory, caplog, is_private, end
):
    box = spool(root=None) if is_private else spool()
    box.fill(1, 2)
    box.emptied()
    box.ack(0, 1)
    box.close()
    assert len(list(box.path.glob("*.entries"))) == (not is_private)
    assert f"1 entries of worker w have not reached the trainer: {end}" in caplog.text


def test_a_link_that_leaves_before_its_robot_leaves_everything_to_it(spool):
    box = spool()
    box.fill(1)
    box.emptied()
    box.ack(1, 1)
    box.outbox.close()
    box.fill(2)
    box.outbox = box.reader()
    assert box.unacknowledged_samples() == 1


def test_where_there_is_no_shared_memory_a_private_folder_is_a_temporary_one(
    spool, tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert spool(root=None).folder.path.parent == tmp_path
