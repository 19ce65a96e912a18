"""The first argument of a command: what it may name."""

import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from cli_commands import TINY, words

from tmrl_like.base.factories import argument_of
from tmrl_like.cli.arguments import parse
from tmrl_like.cli.places import find_place
from tmrl_like.config.loading import as_yaml
from tmrl_like.config.settings import Settings
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import load_experiment
from tmrl_like.metrics.starts import Start, write_starts


@pytest.fixture
def run_folder():
    """A run named `arm`, trained from tiny.yaml with another seed."""
    text = Path(TINY).read_text().replace("run_name: tiny", "run_name: arm\nseed: 77")
    folder = Settings(run_name="arm").paths.folder
    write_starts(folder, [Start(time="now", experiment=text, experiment_file=TINY)])
    return folder


def test_a_file_a_name_a_run_and_a_runs_folder_are_found(run_folder):
    for file in ("mine.yaml", "my arm-v.2.yaml", "odd"):
        shutil.copy(TINY, file)
    for typed, file in (
        (TINY, TINY),
        ("mine", "mine.yaml"),
        ("my arm-v.2", "my arm-v.2.yaml"),
        ("odd", "odd"),
        ("mine@3", "mine.yaml"),
    ):
        assert find_place(typed).file == Path(file)
    assert find_place("drone").file.name == "drone.yaml"
    for typed in ("arm", str(run_folder), "arm@best", f"{run_folder}@best"):
        assert find_place(typed).run == run_folder
    assert find_place("arm@best").version == "best"
    assert find_place("mine").folder() == Settings(run_name="tiny").paths.folder


def test_a_name_is_the_experiments_and_with_a_version_the_runs(run_folder):
    shutil.copy(TINY, "arm.yaml")
    assert find_place("arm").file == Path("arm.yaml")
    assert find_place("arm@3").run == run_folder
    assert parse(["test", "arm"]).experiment.run_name == "tiny"
    assert parse(["test", "arm@3"]).experiment.seed == 77


@pytest.mark.parametrize("command", ["run", "run --in-process", "trainer"])
def test_a_run_goes_on_in_the_data_folder_alone(command, run_folder, tmp_path, refused, out_of):
    moved = shutil.copytree(run_folder, tmp_path / "arm")
    error = refused(command, moved)
    assert f"{moved} is not {run_folder}, where the run arm is trained" in error
    assert "move the folder there, or start another run: --run_name NAME" in error
    assert parse(words(command, moved, "--run_name leg")).experiment.run_name == "leg"
    assert parse(words(command, run_folder)).experiment.run_name == "arm"
    assert "run_name: arm" in out_of("config", moved)
    encoder = words("trainer", moved, "--encoder x.safetensors")
    assert parse(encoder).experiment.run_name == "arm"
    shutil.copytree(run_folder, run_folder.with_name("arm (copy)"))
    assert f" is not {run_folder}, where " in refused(command, "'arm (copy)'")


def test_what_parts_of_a_run_know_from_each_other_follows_a_change_of_the_other_part():
    experiment = load_experiment("drone")
    kept = as_yaml(experiment.as_data(shows_told=False))
    write_starts(experiment.paths.folder, [Start(time="now", experiment=kept)])
    folder, changes = experiment.paths.folder, "--agent.gamma 0.5 --env.act_buf_len 7"
    again = parse(words("trainer", folder, changes)).experiment.with_code()
    known = {name: argument_of(again.memory_cls, name) for name in ("gamma", "act_buf_len")}
    assert known == {"gamma": 0.5, "act_buf_len": 7}


@pytest.mark.skipif(os.name == "nt", reason="there it is the name of no file")
@pytest.mark.parametrize("command", ["check", "policies list", "runs"])
def test_a_name_that_cannot_be_looked_up_is_one_line(command, refused):
    name = 300 * "n"
    assert f"{name}: cannot be read: File name too long" in refused(command, name)


def test_a_worker_drives_the_version_behind_the_at(refused, store, monkeypatch):
    make = Mock(side_effect=ConfigError("enough"))
    monkeypatch.setattr("tmrl_like.experiment.Experiment.make_worker", make)
    for typed, policy in (("TINY@2", store.path(2)), ("TINY", None)):
        refused("worker", typed)
        assert make.call_args.kwargs["policy"] == policy
