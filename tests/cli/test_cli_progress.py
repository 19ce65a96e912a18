"""The progress that a run shows, and the proof at its end."""

import json
import math
import sys
from pathlib import Path

import pytest
from kit.clocks import Clock
from kit.episodes import episode
from kit.failing import with_a_full_disk, without_a_reader

from tmrl_like.cli import proof
from tmrl_like.cli.progress import Progress, sparkline
from tmrl_like.cli.tables import mean_and_std, summary_row
from tmrl_like.cli.views import LiveView, PlainView
from tmrl_like.config.settings import ProofSection, Settings, TrainerSection
from tmrl_like.metrics.sinks import rows_of_round

ROUND = {
    "kind": "round",
    "time_s": 60.0,
    "epoch": 0,
    "round": 4,
    "env_steps_total": 1200,
    "env_steps_per_s": 20.0,
    "training_steps_total": 5000,
    "training_steps_per_s": 100.0,
    "training_steps_per_env_step": 4.2,
    "sample_age_p50_s": 0.05,
    "policy_age_p50_s": 1.5,
    "overruns_total": 3,
}


def episodes(*returns, terminated=False):
    return [episode(test=True, return_=return_, terminated=terminated) for return_ in returns]


def record(return_, terminated=False, test=True, fault=""):
    return {
        "kind": "episode",
        "time_s": 5.0,
        "test": test,
        "return": return_,
        "terminated": terminated,
        "fault": fault,
    }


@pytest.fixture
def progress():
    return Progress(Settings())


def test_progress_shows_returns_rates_ages_and_overruns(progress):
    assert progress.rows() == [("training", "waiting for samples")]
    progress.add({"kind": "warm_up", "time_s": 1.0, "env_steps_total": 600, "start_training": 1000})
    assert progress.rows() == [("training", "waiting for samples: 600 of 1,000 (start_training)")]
    broken = record(50.0, fault="hangs"), record(50.0, test=False, fault="hangs")
    whole = record(-3.0), record(-1.0, terminated=True), record(-2.0, test=False)
    for value in (ROUND, *broken, *whole):
        progress.add(value)
    rows = dict(progress.rows())
    assert "-1.00, mean of 2: -2.00  ▁█" in rows["test return"]
    assert rows["terminal state"] == "reached in 50% of the last 2 tests"
    assert rows["samples"] == "1,200, 20.0/s"
    assert rows["training"] == "5,000 steps, 100/s, 4.20 per sample"
    assert rows["median age"] == "sample 50 ms, policy 1.5 s"
    assert rows["overruns"] == "3"
    assert not {"faults", "rejected", "loss"} & rows.keys()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("learning", "yes"),
        ("not learning because it stands still", "no: it stands still"),
    ],
)
def test_whether_it_learns_is_said_in_an_answer(line, words):
    assert dict(rows_of_round(ROUND | {"learning": line}))["does it learn?"] == words


@pytest.mark.parametrize(
    ("fields", "left_s"),
    [
        ({"epochs": 1}, 60.0),  # half of the rounds took a minute
        ({"epochs": 10, "max_minutes": 3}, 120.0),
        ({"epochs": math.inf, "max_minutes": 3}, 120.0),
        ({"epochs": math.inf}, None),
    ],
)
def test_time_left_is_by_the_clock_or_by_the_rounds_so_far(fields, left_s):
    section = TrainerSection(rounds=10, steps=1000, **fields)
    progress = Progress(Settings(trainer=section), now=Clock(1000.0))
    assert progress.left_s() is None
    progress.add(ROUND)
    assert progress.left_s() == left_s
    progress.finish()
    assert progress.left_s() is None
    assert progress.times() == "1:00 of training"


def test_sparklines_are_drawn_between_lowest_and_highest():
    assert sparkline([0, 7]) == "▁█"
    assert sparkline([1, 1]) == "▁▁"
    assert sparkline(range(1000)) == "▁▁▁▂▂▂▂▂▂▃▃▃▃▃▄▄▄▄▄▄▅▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇▇███"


@pytest.mark.parametrize("make_view", [PlainView, LiveView])
def test_a_view_shows_what_happens(make_view, progress, capsys):
    progress.add(ROUND)
    view = make_view("title")
    view.show("training", progress)
    view.line("12:00:00 worker   WARNING [bold] is no markup")
    view.show("training", progress)
    view.close()
    out = capsys.readouterr().out
    assert out.count("WARNING [bold] is no markup") == 1
    assert "5,000 steps" in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    ("make_view", "opened"),
    [(PlainView, without_a_reader), (PlainView, with_a_full_disk), (LiveView, with_a_full_disk)],
)
def test_a_view_goes_on_if_nothing_takes_its_lines(make_view, opened, progress, monkeypatch):
    """`tmrl-like run … | tee log`: Ctrl-C ends both, and the run has yet to end its parts."""
    stdout = opened()
    monkeypatch.setattr(sys, "stdout", stdout)
    progress.add(ROUND)
    view = make_view("title")
    view.line("a line \a")
    view.show("ending", progress)
    view.close()
    with pytest.raises(OSError, match=r"space|pipe"):
        stdout.close()


def test_means_and_deviations_are_the_samples_own():
    assert mean_and_std([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    assert mean_and_std([5.0]) == (5.0, 0.0)
    both = episodes(1.0, terminated=True) + episodes(3.0)
    assert summary_row("x", both) == ["x", "2", "2.000 ± 1.414", "50%", "10.0"]
    assert summary_row("x", episodes(3.0))[2] == "3.000"  # one value has no spread


@pytest.mark.parametrize(
    ("untrained", "trained", "passed"),
    [
        ([-10, -11, -9], [-1, -2, -1], True),
        ([-10, 0, -20], [-5, 5, -15], False),
        ([-10, -10, -10], [-9, -9, -9], True),
    ],
)
def test_a_proof_holds_only_if_the_mean_is_better_by_the_margin(untrained, trained, passed):
    is_better, _ = proof.judge(episodes(*untrained), episodes(*trained), ProofSection(episodes=3))
    assert is_better is passed


def test_a_proof_asks_for_the_share_of_terminal_states_and_is_saved(tmp_path, capsys):
    untrained = episodes(-10.0, -11.0)
    trained = episodes(-1.0, terminated=True) + episodes(-1.1)
    assert proof.judge(untrained, trained, ProofSection(min_terminated_share=0.5))[0]
    assert not proof.prove(untrained, trained, ProofSection(min_terminated_share=0.6), tmp_path)
    assert "a terminal state in 50% of the episodes, 60% are asked for" in capsys.readouterr().out
    assert json.loads((tmp_path / "proof.json").read_text())["trained"][0]["return"] == -1.0
