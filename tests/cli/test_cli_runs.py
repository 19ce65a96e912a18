"""`tmrl-like runs` and `test`: what has been trained, and how good that is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from cli_commands import TINY
from test_cli_policies import store  # noqa: F401
from tiny import TinyActor, TinyEnv

from tmrl_like.cli.test import confidence_interval
from tmrl_like.config.loading import as_yaml
from tmrl_like.config.run_lock import use_run
from tmrl_like.config.settings import Settings
from tmrl_like.experiment import load_experiment
from tmrl_like.metrics.sinks import JsonLinesSink
from tmrl_like.metrics.starts import Start, write_starts
from tmrl_like.policies.policy_store import PolicyStore

CommandLine = Callable[..., int]


@pytest.fixture
def trained(own_home: Path) -> Callable[..., Path]:
    """Makes a run of two minutes, with four test episodes that return 0 to 3."""

    def make(name: str, ended: str = "done", **changes: Any) -> Path:
        paths = Settings(run_name=name).paths
        text = as_yaml(load_experiment(TINY, [((key,), str(value)) for key, value in changes.items()]).as_data())
        start = Start(time=f"2026-11-23T11:0{len(name)}:00+01:00", task="TinyEnv", ended=ended)
        start = msgspec.structs.replace(start, experiment=text, experiment_file=TINY)
        write_starts(paths.folder, [Start(time="before"), start])
        sink = JsonLinesSink(paths.metrics)
        for number in range(4):
            episode = {"kind": "episode", "test": True, "return": float(number), "env_steps_total": 100 * number}
            sink.write(episode | {"time_s": 30.0 * (number + 1)})
        sink.close()
        return paths.folder

    return make


def rows_of(out: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.split()}


def test_all_runs_are_listed_with_task_minutes_return_and_state(
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    trained: Callable[..., Path],
    store: PolicyStore,  # noqa: F811
) -> None:
    assert command_line("runs") == 0
    assert "no runs in" in capsys.readouterr().out
    trained("killed1", ended="")
    trained("tiny")
    store.add_return(2, 5.0)
    trained("live", ended="")
    Settings(run_name="empty").paths.policies.mkdir(parents=True)
    with use_run(Settings(run_name="live").paths, "trainer"):
        assert command_line("runs") == 0
    rows = rows_of(capsys.readouterr().out)
    assert rows["tiny"] == ["TinyEnv", "2026-11-23", "11:04", "2.0", "300", "3", "5", "done"]
    assert (rows["live"][-1], rows["killed1"][-2:]) == ("running", ["-", "killed"])
    assert "empty" not in rows


def test_runs_that_differ_in_their_seeds_are_one_band_in_the_picture(
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    trained: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: dict[str, list[str]] = {}

    def note(picture: Path, runs: dict[str, list[Path]]) -> bool:
        drawn.update({label: [folder.name for folder in folders] for label, folders in runs.items()})
        return True

    trained("a", seed=1)
    folder = trained("b", seed=2)
    trained("other", seed=2, crc_debug=True)
    picture = tmp_path / "new" / "returns.png"
    assert command_line("runs", "a", str(folder), "other", "--plot", "--out", str(picture)) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture}" in capsys.readouterr().out
    monkeypatch.setattr("tmrl_like.cli.runs.plot_returns", note)
    assert command_line("runs", "--plot", "a", "b", "other") == 0
    assert drawn == {"a, …": ["a", "b"], "other": ["other"]}


def test_a_policy_is_evaluated_where_it_was_trained_with_mean_spread_and_interval(
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    trained: Callable[..., Path],
    store: PolicyStore,  # noqa: F811
) -> None:
    trained("tiny")
    store.add_return(1, 5.0)
    for place, policy, shares in (("tiny", "3", "100%"), ("tiny@best", "best", "0%"), (f"{TINY}@2", "2", "0%")):
        assert command_line("test", place, "--interval", "--episodes", "3", "--env.step_s", "0") == 0
        out = capsys.readouterr().out
        assert str(store.path(policy)) in out.replace("\n", "")
        row = rows_of(out)["3"]
        assert row[-1] == shares
        low, mean, high = float(row[1]), float(row[0]), float(row[3])
        assert low <= mean <= high
    assert command_line("test", TINY, "--policy", "best", "--episodes", "1") == 0
    assert str(store.path("best")) in capsys.readouterr().out.replace("\n", "")


def test_a_scripts_policy_is_evaluated_in_the_environment_that_the_script_named(
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    store: PolicyStore,  # noqa: F811
) -> None:
    folder, env = store.folder.parent, {"class_path": "tiny.TinyEnv", "init_args": {"step_s": 60.0}}
    start = Start(env=env, folder=str(Path(TINY).parent), command="python3 my/train.py 3")

    def error(start: Start, place: str = "tiny") -> str:
        write_starts(folder, [start])
        assert command_line("test", place, "--interval", "--episodes", "2") == 2
        return capsys.readouterr().err

    write_starts(folder, [start])
    assert command_line("test", "tiny@3", "--interval", "--episodes", "2", "--env.step_s", "0") == 0
    assert "2" in rows_of(capsys.readouterr().out)
    unknown = msgspec.structs.replace(start, env={"class_path": "no_such.Env"})
    assert "my/train.py (as it was kept):2: env.class_path: there is no module" in error(unknown)
    assert "env cannot be made again: it is in my/train.py itself: put it into a module" in error(
        msgspec.structs.replace(start, env={"class_path": "tiny.TinyEnv", "init_args": {"at": "__main__.here"}})
    )
    assert "its env cannot be made again: nobody knows" in error(msgspec.structs.replace(start, env="nobody knows"))
    TinyActor(TinyEnv.observation_space, TinyEnv.action_space).save(store.path(4))
    assert "its actor cannot be made again: its file holds weights alone" in error(start, "tiny@4")


def test_one_episode_has_neither_spread_nor_interval(
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    trained: Callable[..., Path],
    store: PolicyStore,  # noqa: F811
) -> None:
    trained("tiny")
    assert command_line("test", "tiny", "--interval", "--episodes", "1", "--env.step_s", "0") == 0
    mean, interval, std, lowest, *_ = rows_of(capsys.readouterr().out)["1"]
    assert (interval, std) == ("-", "-")
    assert mean == lowest


def test_the_confidence_interval_is_that_of_a_mean() -> None:
    low, high = confidence_interval(np.random.default_rng(3).normal(5.0, 2.0, 400))
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / 20.0, rel=0.1)
    assert low < 5.0 < high
    assert confidence_interval(np.ones(3)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs", "nobody", "--plot"], "there is no experiment and no run nobody; `tmrl-like --help` lists"),
        (["runs", "silent", "--plot"], "no episode of silent has ended: expected a run with metrics in"),
        (["runs", "--plot"], "--plot wants runs to draw"),
        (["runs", "tinny"], "; did you mean tiny?"),
        (["test", "tinny@best"], "; did you mean tiny?"),
        (["test", "silent"], "says of no environment to drive it in"),
        (["test", "tiny@none"], "there is no policy none in"),
        (["test", "tiny@3", "--policy", "best"], "--policy best and tiny@3 name two policies"),
        (["trainer", "tiny@3"], "tiny@3: `trainer` takes no version of a policy"),
        (["test", "tiny", "--episodes", "0"], "--episodes is 0; expected 1 or more"),
        (["runs", "--env.step_s", "1"], "`runs` reads no experiment"),
        (["runs", "tiny", "--plot", "--out", "/dev/null/x.png"], "--out /dev/null/x.png"),
    ],
)
def test_mistakes_are_one_line_each(
    words: list[str],
    message: str,
    command_line: CommandLine,
    capsys: pytest.CaptureFixture[str],
    trained: Callable[..., Path],
    store: PolicyStore,  # noqa: F811
) -> None:
    trained("tiny")
    Settings(run_name="silent").paths.folder.mkdir()
    assert command_line(*words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
