"""`tmrl-like trainer --offline`: from a recording to a policy, without server and worker."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_commands import HERE, TINY

CommandLine = Callable[..., int]
PENDULUM = str(HERE.parents[1] / "config" / "pendulum.yaml")


def mean_return(command_line: CommandLine, capsys: pytest.CaptureFixture[str], *arguments: str) -> float:
    capsys.readouterr()
    assert command_line("test", *arguments) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "±" in line and "mean" not in line]
    return float(line.split("±")[0].split()[-1])


HAS_DONE_ITS_EPOCH = (
    "this run has done its 1 epoch: raise epochs (--trainer.epochs) to go on, choose another run_name, or start over "
    "with resume none (--trainer.resume none; of `run`: --fresh)"
)


def refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("nothing is to be connected or started")


@pytest.fixture
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tmrl_like.trainer.connecting.connect_to_one", refuse)


@pytest.mark.usefixtures("no_connection")
def test_a_recording_is_trained_on_and_the_policy_tested(
    tmp_path: Path,
    own_home: Path,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert command_line("record", TINY, "--random", "--episodes", "5", "--out", str(tmp_path / "data")) == 0
    given = (TINY, f"--memory.dataset_path={tmp_path / 'data'}", "--run_name=recorded")
    assert command_line("trainer", *given, "--offline") == 0
    folder = own_home / ".tmrl_like" / "runs" / "recorded"
    assert {"checkpoints", "experiment.yaml", "metrics.jsonl", "policies"} <= {p.name for p in folder.iterdir()}
    assert not (own_home / ".tmrl_like" / "keys").exists()
    capsys.readouterr()
    with monkeypatch.context() as patch:  # it has done its epochs: said before anything is started
        patch.setattr("tmrl_like.cli.run.Family.start", refuse)
        patch.setattr("tmrl_like.cli.train.Trainer", refuse)
        for words in (["trainer", *given, "--offline"], ["run", *given], ["run", *given, "--in-process"]):
            assert command_line(*words) == 2
            assert capsys.readouterr() == ("", f"tmrl-like: error: {HAS_DONE_ITS_EPOCH}\n")
    assert command_line("trainer", *given, "--offline", "--trainer.epochs", "2") == 0
    trained = mean_return(command_line, capsys, *given, "--episodes", "2")
    assert trained > mean_return(command_line, capsys, TINY, "--untrained", "--episodes", "2") + 5


@pytest.mark.usefixtures("no_connection", "own_home")
def test_a_run_without_samples_is_one_line(command_line: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line("trainer", TINY, "--offline") == 2
    assert "the memory holds no transition, and offline no worker sends any" in capsys.readouterr().err


@pytest.mark.parametrize("section", ["trainer: 5", "worker: [1]"])
def test_a_section_that_holds_no_keys_is_one_line(
    section: str, tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = "env: tiny.TinyEnv\nactor: tiny.TinyActor\nagent: tiny.TinyAgent\nmemory: tiny.TinyMemory\n"
    (tmp_path / "x.yaml").write_text(f"{parts}{section}\n")
    assert command_line("trainer", str(tmp_path / "x.yaml")) == 2
    error = capsys.readouterr().err
    assert f"x.yaml:5: {section.partition(':')[0]}: expected keys with values" in error
    assert error.count("\n") == 1


@pytest.mark.learn
@pytest.mark.usefixtures("no_connection", "own_home")
def test_the_pendulum_is_learnt_from_what_a_random_policy_did(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line("record", PENDULUM, "--random", "--episodes", "50", "--out", str(tmp_path / "data")) == 0
    steps = ("--trainer.epochs=1", "--trainer.rounds=6", "--trainer.steps=500")
    assert command_line("trainer", PENDULUM, "--offline", f"--memory.dataset_path={tmp_path / 'data'}", *steps) == 0
    assert mean_return(command_line, capsys, PENDULUM, "--episodes", "10") > -400


@pytest.mark.usefixtures("no_connection", "own_home")
def test_an_encoder_of_recorded_pictures_is_trained_beforehand(
    tmp_path: Path,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tmrl_like.cli.train._ENCODER_STEPS", 20)
    (tmp_path / "lights.py").write_text(LIGHTS)
    (tmp_path / "lights.yaml").write_text(SEEN)
    monkeypatch.syspath_prepend(tmp_path)
    seen, data, file = str(tmp_path / "lights.yaml"), str(tmp_path / "data"), str(tmp_path / "lights.safetensors")
    assert command_line("record", seen, "--random", "--episodes", "3", "--out", data) == 0
    capsys.readouterr()
    given = f"--memory.dataset_path={data}"
    assert command_line("trainer", seen, "--encoder", file, given) == 0
    said = capsys.readouterr().out
    assert f"{file}: from 24 samples; it keeps " in said
    assert said.endswith(f"start a run with it: --agent.picture_encoder {file}\n")
    assert command_line("trainer", seen, "--offline", given, "--agent.picture_encoder", file) == 0
    capsys.readouterr()
    for words, said in (
        (("trainer", seen, "--encoder", str(tmp_path / "lights"), given), "a name that ends in .safetensors"),
        (("trainer", seen, "--encoder", file), "the memory holds no transition"),
        (("trainer", PENDULUM, "--encoder", file), "SACAgent has no encoder of pictures"),
        (("trainer", seen, "--run_name=other", "--offline", given, "--agent.picture_encoder", data), "picture_encoder"),
    ):
        assert command_line(*words) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("tmrl-like: error") == 1


LIGHTS = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Lights(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (1, 16, 16), np.uint8)
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action[0]), False, self.steps == 8, {}
"""
SEEN = """
env: lights.Lights
actor: {class_path: tmrl_like.agents.SquashedGaussianActor, init_args: {hidden_sizes: [8]}}
agent: {class_path: tmrl_like.agents.SACAgent}
memory: {class_path: tmrl_like.replay.ReplayMemory, init_args: {batch_size: 8, memory_size: 1000}}
trainer: {epochs: 1, rounds: 1, steps: 2}
"""
