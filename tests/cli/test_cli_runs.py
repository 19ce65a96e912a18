"""`tmrl-like runs` and `test --interval`: which runs there are, and how good they are."""

import re
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from cli_commands import TINY, rows_in, summary_of
from kit.systems import may_link
from tiny import actor_that_presses

from tmrl_like.cli.test import confidence_interval
from tmrl_like.config.loading import as_yaml
from tmrl_like.config.run_lock import use_run
from tmrl_like.config.settings import Settings
from tmrl_like.experiment import load_experiment
from tmrl_like.metrics.sinks import JsonLinesSink
from tmrl_like.metrics.starts import Start, write_starts

ONE = "--interval --env.step_s 0 --episodes"


def trained(name, ended="done"):
    """Make a run of two minutes, with four test episodes that return 0 to 3; return its paths."""
    paths = Settings(run_name=name).paths
    start = Start(
        time=f"2026-11-23T11:0{len(name)}:00+01:00",
        task="TinyEnv",
        ended=ended,
        experiment=as_yaml(load_experiment(TINY).as_data()),
        experiment_file=TINY,
    )
    write_starts(paths.folder, [Start(time="before"), start])
    sink = JsonLinesSink(paths.metrics)
    for number in range(4):
        counts = {"time_s": 30.0 * (number + 1), "env_steps_total": 100 * number}
        sink.write({"kind": "episode", "test": True, "return": float(number)} | counts)
    sink.close()
    return paths


def rows_of(out):
    return {first: others for first, *others in rows_in(out)}


def test_all_runs_are_listed_with_task_minutes_return_and_state(out_of, store, monkeypatch):
    assert "no runs in" in out_of("runs")
    trained("killed1", ended="")
    trained("tiny")
    store.add_return(2, 5.0)
    live = trained("live", ended="")
    Settings(run_name="empty").paths.policies.mkdir(parents=True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")  # nothing is cut
    with use_run(live, "trainer"):
        rows = rows_of(out_of("runs"))
    assert rows["tiny"] == ["TinyEnv", "2026-11-23", "11:04", "2.0", "300", "3", "5", "done"]
    assert (rows["live"][-1], rows["killed1"][-2:]) == ("running", ["-", "killed"])
    assert "empty" not in rows


@may_link
@pytest.mark.parametrize("moved", ["runs", "runs/live"])
def test_a_run_that_is_kept_elsewhere_is_the_run_of_the_links_name(
    moved, out_of, refused, own_home, tmp_path
):
    live = trained("live", ended="").folder
    folder = own_home / ".tmrl_like" / moved
    folder.symlink_to(folder.rename(tmp_path / "large"))
    with use_run(Settings(run_name="live").paths, "trainer"):
        for place in ("", "live", live, live.resolve()):
            assert rows_of(out_of("runs", place))["live"][-1] == "running"
    assert "run_name: live" in out_of("config live")
    if moved == "runs/live":
        assert f"{folder} is a link, behind which" in refused("run live --fresh")


@may_link
def test_a_link_to_a_run_is_that_run_wherever_the_link_is(out_of, refused):
    real = trained("real", ended="")
    real.folder.with_name("alias").symlink_to(real.folder)
    Path("result").symlink_to(real.folder)
    with use_run(real, "trainer"):
        for place in ("", "alias", "result"):
            rows = rows_of(out_of("runs", place))
            assert rows["real"][-1] == "running"
            assert not {"alias", "result"} & set(rows)
        for place in ("alias", "result", "TINY --run_name alias"):
            assert "is in use by process" in refused("trainer", place)
    for place in ("alias", "result"):
        assert "run_name: real" in out_of("config", place)


def test_a_damaged_policy_hides_no_run(out_of, store):
    trained("other")
    trained("tiny")
    store.add_return(2, 5.0)
    store.path("best").write_bytes(b"damaged")
    rows = rows_of(out_of("runs"))
    assert (rows["tiny"][-2:], rows["other"][-2:]) == (["unreadable", "done"], ["-", "done"])


def test_the_runs_that_are_named_are_drawn_in_a_picture(typed, out_of, tmp_path, monkeypatch):
    folders = [trained(name).folder for name in "ab"]
    trained("other")
    picture = tmp_path / "new" / "returns.png"
    assert f"picture: {picture}" in out_of("runs a", folders[1], "--out", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr("tmrl_like.cli.runs.plot_returns", plot := Mock())
    typed("runs --plot a", folders[1])
    assert plot.call_args.args[1] == folders


def test_a_policy_is_evaluated_where_it_was_trained_with_mean_spread_and_interval(out_of, store):
    trained("tiny")
    store.add_return(1, 5.0)
    for place, policy, shares in (
        ("tiny", "3", "100%"),
        ("tiny@best", "best", "0%"),
        ("TINY@2", "2", "0%"),
    ):
        out = out_of("test", place, ONE, 3)
        assert str(store.path(policy)) in out
        row = summary_of(out)
        assert row[-2] == shares
        low, high = re.search(r"95 % confidence: (\S+) to (\S+);", out).groups()
        assert float(low) <= float(row[1]) <= float(high)


def test_a_run_that_was_put_aside_is_tested_with_its_own_policy(out_of, store):
    paths = trained("tiny")
    actor_that_presses(1.0).save(paths.trainer_model)
    aside = paths.folder.rename(paths.folder.with_name("tiny-until-now"))
    trained("tiny")
    actor_that_presses(0.0).save(paths.trainer_model)
    for place, share in (("tiny-until-now", "100%"), (aside, "100%"), ("tiny", "0%")):
        assert f" {share} " in out_of("test", place, "--env.step_s 0 --episodes 2")
    assert " 0% " in out_of("test tiny-until-now --run_name tiny --episodes 2")
    assert "run_name: tiny-until-now" in out_of("config tiny-until-now")
    copied = aside.rename(aside.with_name("tiny (copy)"))  # no name that a run may have
    assert " 100% " in out_of("test", copied, "--env.step_s 0 --episodes 2")


def test_the_confidence_interval_is_that_of_a_mean():
    low, high = confidence_interval(np.random.default_rng(3).normal(5.0, 2.0, 400))
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / 20.0, rel=0.1)
    assert low < 5.0 < high
    assert confidence_interval(np.ones(3)) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("runs silent --plot", "no episode of silent has ended: expected a run with metrics in"),
        ("test tiny --interval --episodes 1", "one return has no spread; expected --episodes 2 or"),
        ("test silent", "has kept no experiment (run.json): it was trained by a script, or"),
        ("test tiny@none", "there is no policy none in"),
        ("test tiny@3 --policy best", "--policy best and tiny@3 name two policies"),
        ("trainer tiny@3", "tiny@3: `trainer` takes no version of a policy"),
        ("runs tiny@3", "tiny@3: `runs` takes no version of a policy"),
        ("policies list tiny@3", "`policies list` takes no version of a policy; leave out the @"),
        ("test tiny@3 --untrained", "`test --untrained` takes no version of a policy"),
        ("record tiny@3 --random --out data", "`record --random` takes no version of a policy"),
        ("worker tiny@3 --expert", "`worker --expert` takes no version of a policy"),
        ("runs tiny --plot --out /dev/null/x.png", "--out /dev/null/x.png"),
    ],
)
def test_a_mistake_is_one_line(store, words, message, refused):
    trained("tiny")
    Settings(run_name="silent").paths.folder.mkdir()
    assert message in refused(words)
