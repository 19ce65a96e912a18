"""The trainer's knowledge about its workers."""

import pytest
from kit.clocks import Clock

from tmrl_like.trainer.fleet import Fleet, together
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition


@pytest.fixture
def clock(monkeypatch):
    clock = Clock(100.0)
    monkeypatch.setattr("tmrl_like.trainer.fleet.time.monotonic", clock)
    return clock


def beat(version, worker="w", **condition):
    return m.Beat(worker, Condition(policy_version=version, **condition))


def test_the_fleet_knows_who_is_missing_and_why(caplog, clock):
    fleet = Fleet()
    assert (fleet.describe(), fleet.is_driving()) == ("", False)
    fleet.on_beat(beat(0, "silent"), 0)
    clock.now += 20.0
    fleet.on_beat(beat(0, "here", alarm="its clock is off"), 0)
    assert fleet.is_driving()
    for _ in range(2):
        clock.now += 1.0
        fleet.on_beat(beat(0, "here", ended="ValueError: no"), 0)
    assert not fleet.is_driving()
    assert fleet.describe() == (
        "worker here no longer drives (ValueError: no); worker silent has not been heard of for 22 "
        "s"
    )
    assert caplog.text.count("worker here no longer drives: ValueError: no") == 1
    fleet.on_beat(beat(0, "here", alarm="its clock is off"), 0)
    assert fleet.describe().startswith("worker here is here, and sends none (its clock is off)")


def test_the_share_of_missed_deadlines_is_of_the_steps_since_the_last_look():
    fleet = Fleet()
    fleet.on_beat(beat(0, env_steps=1000, overruns=500), 0)
    assert "deadline_miss_share" not in fleet.metrics(0)
    fleet.on_beat(beat(0, env_steps=1100, overruns=510), 0)
    assert fleet.metrics(0)["deadline_miss_share"] == 0.1
    fleet.on_beat(beat(0, env_steps=50, overruns=50), 0)  # a new process with the same name
    fleet.on_beat(beat(0, env_steps=60, overruns=50), 0)
    assert fleet.metrics(0)["deadline_miss_share"] == 50 / 60


def test_all_that_a_new_process_with_a_known_name_has_counted_is_added():
    fleet = Fleet()
    fleet.on_beat(beat(0, env_steps=1000, overruns=3), 0)
    fleet.on_beat(beat(0, env_steps=50, overruns=5), 0)
    assert fleet.metrics(0)["overruns_total"] == 8


def test_faults_of_environments_are_counted_over_the_fleet_and_each_is_reported_once(caplog):
    caplog.set_level("INFO")
    fleet = Fleet()
    for faults, rebuilds in ((0, 0), (1, 0), (1, 1), (1, 1)):
        fleet.on_beat(beat(0, env_faults=faults, env_rebuilds=rebuilds), 0)
    fleet.on_beat(beat(0, "other", env_faults=2, env_rebuilds=1), 0)
    metrics = fleet.metrics(0)
    assert (metrics["env_faults_total"], metrics["env_rebuilds_total"]) == (3, 2)
    assert caplog.text.count("worker w: its environment failed; faults so far: 1") == 1
    assert caplog.text.count("worker w: its environment was rebuilt") == 1


def test_of_very_many_workers_what_those_did_that_are_gone_still_counts(clock):
    fleet, did = Fleet(), {"overruns": 3, "safe_steps": 2, "lost_samples": 4}
    for k in range(10_005):
        fleet.on_beat(beat(0, f"w{k}", **did), 0)
    assert fleet.metrics(0)["workers"] == 10_005
    clock.now += 10.0
    fleet.on_beat(beat(0, "new"), 0)  # in the place of one that is gone
    fleet.on_beat(beat(0, "w0", **did), 0)
    metrics = fleet.metrics(0)
    assert metrics["workers"] == 2
    assert [metrics[f"{figure}_total"] for figure in did] == [10_006 * of for of in did.values()]


def test_a_worker_that_is_too_many_versions_behind_is_named_once_and_so_is_its_recovery(caplog):
    caplog.set_level("INFO")
    fleet = Fleet(max_lag_versions=3)
    for newest in (4, 5, 6):
        fleet.on_beat(beat(1), newest)
        fleet.on_beat(beat(0, "expert", expert=True), newest)
        fleet.on_beat(beat(0, "tests", driver="test"), newest)
    assert (
        caplog.text.count(
            "worker w drives version 1, and the newest is 5: 3 versions behind are allowed"
        )
        == 1
    )
    metrics = fleet.metrics(6)
    assert (metrics["workers_with_alarm"], metrics["policy_lag_versions"]) == (1, 5)
    for _ in range(2):
        fleet.on_beat(beat(6), 7)
    assert caplog.text.count("worker w drives version 6: no longer too far behind") == 1
    assert fleet.metrics(7)["workers_with_alarm"] == 0


def test_shares_and_the_furthest_behind_are_those_of_the_fleets_of_both_ranks():
    of_zero = {"workers": 3, "deadline_miss_share": 0.2, "policy_lag_versions": 3, "log_fails": 1}
    of_one = {"workers": 1, "deadline_miss_share": 0.6, "policy_lag_versions": 5, "log_fails": 1}
    assert together(of_zero, of_one) == {
        "workers": 4,
        "deadline_miss_share": pytest.approx(0.3),
        "policy_lag_versions": 5,
        "log_fails": 1,
    }
    del of_zero["deadline_miss_share"]  # none of its workers has driven
    assert together(of_zero, of_one)["deadline_miss_share"] == 0.6
