import contextlib
import threading
import time

import pytest
from kit.systems import may_link

from tmrl_like.config.paths import RunPaths
from tmrl_like.config.run_lock import is_in_use, use_run
from tmrl_like.errors import ConfigError


@pytest.fixture
def paths(tmp_path):
    return RunPaths("r6", tmp_path)


USERS = {
    "run": ("run", {}),
    "renaming": ("run", {"alone": True}),
    "trainer": ("trainer", {}),
    "trainer of a run": ("trainer", {"supervised": True}),
    "worker": ("worker", {}),
}


@pytest.mark.parametrize(
    ("held_by", "wanted_by", "is_free"),
    [
        ("run", "run", False),
        ("run", "trainer", False),
        ("trainer", "run", False),
        ("run", "trainer of a run", True),
        ("run", "worker", True),
        ("worker", "run", True),
        ("worker", "renaming", False),  # it would write weights into another run's folder
        ("trainer of a run", "run", False),  # the run ended, but its trainer still writes there
    ],
)
def test_who_may_use_a_run_beside_whom(paths, tmp_path, held_by, wanted_by, is_free):
    def use(name, paths=paths):
        role, options = USERS[name]
        return use_run(paths, role, **options)

    role, _ = USERS[held_by]
    told = rf"the run r6 is in use by process \d+ \({role}, since \d{{4}}-"
    refused = contextlib.nullcontext() if is_free else pytest.raises(ConfigError, match=told)
    with use(held_by), refused, use(wanted_by):
        pass
    with use(wanted_by), use(wanted_by, RunPaths("r7", tmp_path)):
        pass


@may_link
@pytest.mark.parametrize("folder", ["large", "other/large"])
def test_two_links_to_a_folder_elsewhere_are_used_by_one_trainer(folder, tmp_path):
    (tmp_path / "runs").mkdir()
    for name, leads_to in {"alias": folder, "alias-2": folder, "far": "far/large"}.items():
        (tmp_path / leads_to).mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).symlink_to(tmp_path / leads_to)
    other = RunPaths("alias-2", tmp_path)
    with use_run(RunPaths("alias", tmp_path), "trainer"):
        assert is_in_use(other)
        with pytest.raises(ConfigError), use_run(other, "trainer"):
            pass
        assert not is_in_use(RunPaths("far", tmp_path))


def test_processes_of_two_containers_may_begin_in_the_same_second(paths, monkeypatch):
    """The first process of each container has the same number, as both users here have."""
    monkeypatch.setattr(time, "strftime", lambda *_: "2026-11-22 01.57.30")
    with use_run(paths, "worker"), use_run(paths, "worker"):
        assert len(list(paths.users.glob("worker_*"))) == 2


def test_a_disk_that_cannot_be_written_stops_no_part(paths, tmp_path, caplog):
    (tmp_path / "in_use").write_text("not a folder")
    with use_run(paths, "worker"), use_run(paths, "trainer"):
        assert "is not protected" in caplog.text


def test_who_wants_a_run_that_is_being_renamed_waits_until_it_is(paths, until):
    joined = threading.Event()

    def join():
        with use_run(paths, "worker"):
            joined.set()

    with use_run(paths, "run", alone=True) as let_others:
        worker = threading.Thread(target=join)
        worker.start()
        assert not joined.wait(0.3)
        let_others()
        until(joined.is_set)
    worker.join()


def test_a_run_is_in_use_while_it_has_an_owner(paths):
    assert not is_in_use(paths)
    assert not paths.users.exists()
    with use_run(paths, "worker"):
        assert not is_in_use(paths)
    with use_run(paths, "trainer"):
        assert is_in_use(paths)
    with use_run(paths, "run", alone=True):
        assert is_in_use(paths)
    assert not is_in_use(paths)
