import logging
import os
import threading

import pytest

from tmrl_like.config.paths import RunPaths
from tmrl_like.config.run_lock import is_in_use, use_run
from tmrl_like.errors import ConfigError


@pytest.fixture
def paths(tmp_path):
    return RunPaths("r6", tmp_path)


@pytest.mark.parametrize("first", ["run", "trainer"])
@pytest.mark.parametrize("second", ["run", "trainer"])
def test_a_run_has_one_owner_and_is_free_when_it_ends(paths, first, second):
    told = rf"the run r6 is in use by process \d+ \({first}, since \d{{4}}-"
    with use_run(paths, first), pytest.raises(ConfigError, match=told), use_run(paths, second):
        pytest.fail("it had two owners")
    with use_run(paths, first), use_run(RunPaths("r7", paths.root), second):
        pass
    with use_run(paths, second):
        pass


def test_a_run_shares_its_folder_with_its_parts(paths):
    parts = use_run(paths, "trainer", supervised=True), use_run(paths, "worker")
    refused = pytest.raises(ConfigError, match=r"\(run, since")
    with use_run(paths, "run"), parts[0], parts[1], refused, use_run(paths, "run", alone=True):
        pytest.fail("it had two owners")
    with use_run(paths, "worker"), use_run(paths, "trainer"):
        pass


def test_a_trainer_that_outlives_its_run_for_a_moment_keeps_the_folder(paths):
    saving = use_run(paths, "trainer", supervised=True)
    with saving, pytest.raises(ConfigError, match=r"\(trainer, since"), use_run(paths, "run"):
        pytest.fail("the trainer still writes there")


def test_only_who_renames_the_folder_minds_a_worker(paths):
    with use_run(paths, "worker"):
        with use_run(paths, "run"):
            pass
        with (
            pytest.raises(ConfigError, match=r"\(worker, since"),
            use_run(paths, "run", alone=True),
        ):
            pytest.fail("the worker would write its weights into a stranger's folder")


def test_a_file_that_a_killed_process_left_holds_nobody_back(paths):
    paths.users.mkdir(parents=True)
    (paths.users / "run_4000000_2026-11-22 01.57.30_0").touch()
    with use_run(paths, "run", alone=True):
        assert [
            file.name.partition("_")[0] for file in paths.users.iterdir() if file.name[0] != "."
        ] == ["run"]
    assert not [file for file in paths.users.iterdir() if file.name[0] != "."]


def test_a_disk_that_cannot_be_written_stops_no_part(paths, caplog):
    (paths.root / "in_use").write_text("not a folder")
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


def test_what_users_of_a_run_log_is_in_its_folder_once(paths, capsys):
    log = logging.getLogger("tmrl_like.trainer")
    with use_run(paths, "trainer"), use_run(paths, "worker"):
        log.warning("the drone is late")
    log.warning("nobody uses it")
    with use_run(paths, "trainer", supervised=True):
        log.warning("the run writes that")
    starts, late = paths.log.read_text().splitlines()
    assert f"INFO process {os.getpid()} starts: " in starts
    assert late.endswith(" tmrl_like.trainer WARNING the drone is late")


def test_warnings_of_a_script_stay_on_its_console(paths, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with use_run(paths, "trainer"):
        logging.getLogger("tmrl_like.trainer").warning("the drone is late")
    assert capsys.readouterr().err == "the drone is late\n"
