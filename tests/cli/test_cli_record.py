from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_commands import TINY
from gymnasium import spaces
from tiny import TinyActor, TinyEnv

from tmrl_like.cli.check import traffic_of_episodes
from tmrl_like.cli.record import RandomActor
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.networking import RolloutWorker
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.testing.fakes import CountingEnv

CommandLine = Callable[..., int]


def test_what_a_random_policy_did_starts_a_run(tmp_path: Path, command_line: CommandLine, free_port: int) -> None:
    assert command_line("record", TINY, "--random", "--episodes", "6", "--out", str(tmp_path / "data")) == 0
    memory = ReplayMemory(dataset_path=tmp_path / "data")
    actions = [float(memory.get_transition(k).act[0]) for k in range(len(memory))]
    assert 6 * 3 <= len(actions) <= 6 * 10
    assert len(set(actions)) > 10
    path = f"--memory.init_args.dataset_path={tmp_path / 'data'}"
    assert command_line("trainer", TINY, f"--server.port={free_port}", path, "--trainer.steps", "5") == 0


def test_a_folder_with_a_data_set_is_refused_before_anything_else(
    tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line("record", TINY, "--random", "--episodes", "1", "--out", str(tmp_path / "data")) == 0
    assert f"start a run with it: --memory.dataset_path {tmp_path / 'data'}" in capsys.readouterr().out
    monkeypatch.setattr("tmrl_like.cli.record.prepare", lambda *_: pytest.fail("the experiment was imported"))
    assert command_line("record", TINY, "--random", "--episodes", "1", "--out", str(tmp_path / "data")) == 2
    assert "holds samples already: choose another folder" in capsys.readouterr().err


def test_what_a_stored_policy_did_is_recorded(tmp_path: Path, command_line: CommandLine) -> None:
    actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space)
    actor.pedal.data.fill_(1.0)
    actor.save(tmp_path / "policy")
    out = ("--out", str(tmp_path / "data.tmrl"), "--episodes", "2")
    assert command_line("record", TINY, "--policy", str(tmp_path / "policy"), *out) == 0
    memory = ReplayMemory(dataset_path=tmp_path / "data.tmrl")
    ends = [memory.get_transition(k).terminated for k in range(len(memory))]
    assert ends == [False, False, True] * 2


def test_an_expert_is_the_actor_as_it_is_and_its_samples_are_demonstrations(
    tmp_path: Path, command_line: CommandLine
) -> None:
    experiment = tmp_path / "experts.yaml"
    plain = "class_path: tmrl_like.replay.ReplayMemory\n  init_args: {batch_size: 8, memory_size: 1000}"
    mixed = "class_path: tmrl_like.replay.WithDemonstrations\n  init_args: {memory: tmrl_like.replay.ReplayMemory}"
    experiment.write_text(Path(TINY).read_text().replace(plain, mixed))
    done = command_line("record", str(experiment), "--expert", "--episodes", "2", "--out", str(tmp_path))
    assert done == 0
    assert len(ReplayMemory(dataset_path=tmp_path)) == 20


def test_no_policy_is_one_line(tmp_path: Path, command_line: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line("record", TINY, "--out", str(tmp_path)) == 2
    err = capsys.readouterr().err
    assert "there is no policy" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_more_samples_than_the_memory_of_the_experiment_holds_are_recorded_all(
    tmp_path: Path, command_line: CommandLine
) -> None:
    arguments = "--random", "--episodes", "2", "--out", str(tmp_path), "--memory.init_args.memory_size=5"
    assert command_line("record", TINY, *arguments) == 0
    assert sum(map(len, read_data_set(tmp_path))) > 5


@pytest.mark.parametrize("in_the_way", ["0000000001.log", None])
def test_a_folder_that_cannot_be_written_to_is_one_line_before_the_first_episode(
    tmp_path: Path,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    in_the_way: str | None,
) -> None:
    steps: list[float] = []
    monkeypatch.setattr("tiny.TinyEnv.step", lambda env, action: steps.append(env.steps))
    out = tmp_path / "data"
    if in_the_way:
        out.mkdir()
        (out / in_the_way).write_bytes(b"samples of yesterday")
    else:
        out.write_bytes(b"a file")
    assert command_line("record", TINY, "--random", "--episodes", "2", "--out", str(out)) == 2
    assert steps == []
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tmrl-like: error: ")
    assert str(out) in line
    assert not in_the_way or (out / in_the_way).read_bytes() == b"samples of yesterday"


def test_an_environment_that_fails_in_a_late_episode_costs_that_one_alone(
    tmp_path: Path,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, step = 0, TinyEnv.step

    def failing(env: TinyEnv, action: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 25:  # in the third episode
            raise OSError("the arm is gone")
        return step(env, action)

    monkeypatch.setattr("tiny.TinyEnv.step", failing)
    monkeypatch.setattr("tmrl_like.cli.record.RandomActor.act", lambda actor, obs, test=False: np.zeros(1, np.float32))
    out = tmp_path / "data"
    assert command_line("record", TINY, "--random", "--episodes", "5", "--out", str(out)) != 0
    assert sum(map(len, read_data_set(out))) == 2 * 11
    error = capsys.readouterr().err.splitlines()[-1]
    assert "the arm is gone" in error
    assert f"kept in {out}: 2 of 5 episodes" in error


def test_an_episode_of_any_size_is_taken_whole() -> None:
    class Pictures(CountingEnv):
        def __init__(self, episode_steps: int) -> None:
            super().__init__(episode_steps)
            self.observation_space = spaces.Box(0, 255, (1 << 20,), np.uint8)

        def _obs(self) -> Any:
            return np.zeros(1 << 20, np.uint8)

    tight = OutboxOptions(max_bytes=1 << 20, window_bytes=1 << 20)
    with RolloutWorker(partial(Pictures, 30), RandomActor, standalone=True, model_path=None) as worker:
        (traffic,) = traffic_of_episodes(worker, 1, tight)
        assert traffic.samples == 31
