"""The page's history of a run, without a server and a browser."""

import itertools
import math

import pytest

from tmrl_like.page.history import RunHistory
from tmrl_like.page.prometheus import exposition
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.messages import Beat, Sight


def seen(*looks):
    """Return the incidents found in looks, each given as (trainers, beats…)."""
    history = RunHistory(clock=lambda: 7.0)
    for trainers, *beats in looks:
        history.see(trainers, beats)
    assert {at for at, _, _ in history.incidents} <= {7.0}
    return [(kind, text) for _, kind, text in history.incidents]


def history_of(*records, kind="round"):
    """Return the history of records, which are a second apart unless they have times."""
    history = RunHistory()
    for time_s, record in enumerate(records):
        history.add_record({"kind": kind, "time_s": time_s} | record)
    return history


@pytest.mark.parametrize("rounds", [10, 600, 601, 5000])
def test_a_curve_of_any_length_covers_the_whole_training_evenly_in_600_points(rounds):
    points = history_of(*({"q_mean": -k} for k in range(rounds))).curves["q_mean"]
    assert all(value == -time_s for time_s, value in points)
    assert min(rounds, 150) <= len(points) <= 600
    times = [time_s for time_s, _ in points]
    assert (times[0], times[-1]) == (0, rounds - 1)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) <= max(1, rounds / 100)


def test_a_trainer_that_says_no_time_fills_no_memory():
    curves = history_of(*({"q_mean": k, "time_s": -1.0} for k in range(2000))).curves
    assert len(curves["q_mean"]) <= 600


def test_a_record_that_is_earlier_than_the_last_one_takes_the_place_of_all_since():
    history = history_of(
        {"q_mean": 0.0, "is_on": True},
        {"q_mean": 1.0},
        {"q_mean": 2.0},
        {"q_mean": 10.0, "time_s": 1.0},
    )
    assert history.curves["q_mean"] == [(0, 0.0), (1.0, 10.0)]
    assert "is_on" not in history.curves
    assert history.round["q_mean"] == 10.0


def test_returns_of_training_and_of_tests_are_two_curves_and_what_is_not_finite_is_in_none():
    returns = ((False, 5.0), (True, 7.0), (False, None))
    records = [{"test": test, "return": value} for test, value in returns]
    curves = history_of(*records, kind="episode").curves
    assert curves == {"return": [(0, 5.0)], "return_test": [(1, 7.0)]}


def test_there_are_so_many_curves_and_each_of_them_goes_on():
    shown = {"loss": 2.0, "loss_actor": 2.0}
    curves = history_of(*(shown | {f"q_{k}_{i}": 0 for i in range(99)} for k in range(40))).curves
    assert len(curves) == 100
    assert "loss" not in curves  # no chart shows it
    assert len(curves["loss_actor"]) == 40


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, {"env_steps": 5}, []),
        ({"alarm": "no disk"}, {}, [("bad", "w1: no disk"), ("good", "w1: all is well again")]),
        ({}, {"ended": "it fell"}, [("bad", "w1 no longer drives: it fell")]),
        ({"driver": "policy"}, {"driver": "safe"}, []),
        ({"driver": "safe"}, {"driver": "human"}, [("note", "w1: human has taken over")]),
        (
            {"driver": "human"},
            {"driver": "policy"},
            [("note", "w1: human has taken over"), ("note", "w1: human has given back")],
        ),
        ({"env_faults": 3}, {"env_faults": 4}, [("bad", "w1: its environment failed (4 so far)")]),
        ({"env_rebuilds": 3}, {"env_rebuilds": 4}, [("good", "w1: its environment was rebuilt")]),
    ],
)
def test_what_changes_in_a_worker_is_told_once(before, after, told):
    looks = [([], Beat("w1", Condition(**condition))) for condition in (before, after, after)]
    assert seen(*looks) == told


def test_who_comes_and_goes_is_told_and_many_are_one_line():
    many = [Beat(f"w{i}") for i in range(10, 20)]
    assert seen((["t"], Beat("a")), ([], Beat("b")), (["t"], Beat("b"), *many)) == [
        ("bad", "no trainer"),
        ("note", "b is here"),
        ("bad", "a is gone"),
        ("note", "training: t"),
        ("note", "10 workers are here: w10 to w19"),
    ]


def test_what_the_trainer_says_of_learning_is_told_when_it_changes():
    verdicts = ("too early to say", "learning", "learning", "not learning because entropy is 0")
    history = history_of(
        *({"learning": said, "rejected_workers_total": k} for k, said in enumerate(verdicts))
    )
    told = [(kind, text) for _, kind, text in history.incidents if "samples" not in text]
    assert told == [("good", verdicts[0]), ("good", verdicts[1]), ("bad", verdicts[3])]
    assert len(history.incidents) == 3 + 3


def test_records_that_come_again_are_not_told_again():
    records = [{"learning": said} for said in ("too early to say", "learning")]
    again = [record | {"time_s": time_s} for time_s, record in enumerate(records)]
    resumed = {"learning": "too early to say", "time_s": 0.5}
    told = [text for _, _, text in history_of(*records, *again, resumed).incidents]
    assert told == ["too early to say", "learning", "too early to say"]


def test_the_figures_for_prometheus_have_names_kinds_and_labels():
    worker = Beat(
        'a"b',
        Condition(env_steps=12, alarm="no disk", expert=True, driver="human"),
    )
    sight = Sight(["t"], {"samples": 4}, [(0.25, worker)], [])
    record = {"loss/actor": -1.5, "agent.lr": 0.1, "held_by": "bound", "is_on": True}
    lines = exposition(sight, 2.0, record).splitlines()
    assert not any("held_by" in line or "is_on" in line for line in lines)
    assert set(lines) > {
        "tmrl_agent_lr 0.1",
        "tmrl_loss_actor -1.5",
        "tmrl_page_view_age_s 2.0",
        "tmrl_server_samples_total 4",
        'tmrl_worker_beat_age_s{worker="a\\"b"} 2.25',
        'tmrl_worker_env_steps_total{worker="a\\"b"} 12',
        'tmrl_worker_alarm{worker="a\\"b"} 1',
        'tmrl_worker_expert{worker="a\\"b"} 1',
        'tmrl_worker_ended{worker="a\\"b"} 0',
    }
    assert exposition(None, math.inf, {}) == ""
