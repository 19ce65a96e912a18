from pathlib import Path

import pytest

from tmrl_like.cli.run_lock import use_run
from tmrl_like.config.paths import RunPaths
from tmrl_like.errors import ConfigError


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths("r6", tmp_path)


@pytest.mark.parametrize("first", ["run", "trainer"])
@pytest.mark.parametrize("second", ["run", "trainer"])
def test_a_run_has_one_owner_and_is_free_when_it_ends(paths: RunPaths, first: str, second: str) -> None:
    told = rf"the run r6 is in use by `tmrl-like {first}`, process \d+, since \d{{4}}-"
    with use_run(paths, first), pytest.raises(ConfigError, match=told), use_run(paths, second):
        pytest.fail("it had two owners")
    with use_run(paths, first), use_run(RunPaths("r7", paths.root), second):
        pass
    with use_run(paths, second):
        pass


def test_a_run_shares_its_folder_with_its_parts(paths: RunPaths) -> None:
    with use_run(paths, "run"), use_run(paths, "trainer", supervised=True), use_run(paths, "worker"):
        pass
    with use_run(paths, "worker"), use_run(paths, "trainer"):
        pass


def test_a_trainer_that_outlives_its_run_for_a_moment_keeps_the_folder(paths: RunPaths) -> None:
    saving = use_run(paths, "trainer", supervised=True)
    with saving, pytest.raises(ConfigError, match="`tmrl-like trainer`"), use_run(paths, "run"):
        pytest.fail("the trainer still writes there")


def test_only_who_renames_the_folder_minds_a_worker(paths: RunPaths) -> None:
    with use_run(paths, "worker"):
        with use_run(paths, "run"):
            pass
        with pytest.raises(ConfigError, match="`tmrl-like worker`"), use_run(paths, "run", alone=True):
            pytest.fail("the worker would write its weights into a stranger's folder")


def test_a_file_that_a_killed_process_left_holds_nobody_back(paths: RunPaths) -> None:
    paths.users.mkdir(parents=True)
    (paths.users / "run-4000000-2026-11-22 01.57.30").touch()
    with use_run(paths, "run", alone=True):
        assert [file.name.partition("-")[0] for file in paths.users.iterdir() if file.name[0] != "."] == ["run"]
    assert not [file for file in paths.users.iterdir() if file.name[0] != "."]


def test_a_disk_that_cannot_be_written_stops_no_part(paths: RunPaths, caplog: pytest.LogCaptureFixture) -> None:
    (paths.root / "in_use").write_text("not a folder")
    with use_run(paths, "worker"):
        assert "is not protected" in caplog.text
