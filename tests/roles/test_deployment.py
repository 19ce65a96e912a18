"""A policy drives only when it is whole, fits, is finite and answers a probe; the last good one stays otherwise."""

import math
import time

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like.base.functional import partial
from tmrl_like.errors import NoWorkerError, PolicyError
from tmrl_like.networking import RolloutWorker
from tmrl_like.policies.actions import action_problem, is_finite
from tmrl_like.policies.actor import ActorModule
from tmrl_like.policies.intake import PolicyIntake
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.weights import serialize_weights
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.trainer.fleet import Fleet
from tmrl_like.wire import messages as m
from tmrl_like.wire.policy import FRAME_BYTES, split_policy

BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Free(LinearActor):
    """A linear layer without a bound."""

    def act(self, obs, test=False):
        return self.layer(obs).numpy()


def actor(cls=LinearActor, bias=0.0, weight=0.0) -> ActorModule:
    env = CountingEnv()
    made = cls(env.observation_space, env.action_space)
    with torch.no_grad():
        made.layer.bias.fill_(bias)
        made.layer.weight.fill_(weight)
    return made


def intake(cls=LinearActor) -> PolicyIntake:
    env = CountingEnv()
    return PolicyIntake(partial(actor, cls), PolicyProbe(env.observation_space, env.action_space))


def deliver(to: PolicyIntake, policy: ActorModule, version: int) -> bool:
    taken = None
    for data in split_policy(serialize_weights(policy.snapshot()), version, 1.0):
        frame, body = m.decode(data)
        taken = to.add(frame, body)
    return taken is not None


# -- at the worker's door ------------------------------------------------------------------------------


def _unfit():
    wide = actor()
    wide.layer = torch.nn.Linear(3, 1)
    return {
        "bias holds values that are not finite": (LinearActor, actor(bias=math.nan)),
        "layer.bias is float64 instead of float32": (LinearActor, actor().double()),
        r"layer.weight is \(1, 3\) instead of \(1, 2\)": (LinearActor, wide),
        r"not in the action space: 7 at element \(0,\) is outside \[-1, 1\]": (Free, actor(Free, bias=7.0)),
        "not in the action space: it holds values that are not finite": (Free, actor(Free, weight=3e38)),
    }


@pytest.mark.parametrize("reason", _unfit())
def test_a_policy_that_is_unfit_is_refused_and_the_last_good_one_stays(reason, caplog):
    cls, unfit = _unfit()[reason]
    door = intake(cls)
    assert deliver(door, actor(cls, bias=0.5), 1)
    for version in (2, 3):
        assert not deliver(door, unfit, version)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(door.alarm)
    assert "policy 2 is refused" in door.alarm
    assert len([r for r in caplog.records if "is refused" in r.message]) == 1
    caplog.set_level("INFO")
    waiting = door.take(actor(cls))
    assert waiting.version == 1
    assert waiting.actor.layer.bias.item() == 0.5
    assert deliver(door, actor(cls, bias=0.25), 4)
    assert door.alarm == ""
    assert "policy 4 is fit to act again; 2 were refused" in caplog.text
    assert door.take(waiting.actor).actor.layer.bias.item() == 0.25


def test_pieces_of_two_policies_do_not_become_one():
    class Long(LinearActor):
        def __init__(self, *both):
            super().__init__(*both)
            self.register_buffer("rest", torch.zeros(FRAME_BYTES))

    def frames(value):
        policy = actor(Long)
        policy.rest.fill_(value)
        return [m.decode(data) for data in split_policy(serialize_weights(policy.snapshot()), 5, 1.0)]

    door = intake(Long)
    old, new = frames(1.0), frames(2.0)
    for frame, body in [old[0], *new[1:]]:  # the trainer was killed, and its successor publishes 5, too
        assert door.add(frame, body) is None
    assert "belong to different policies" in door.alarm


def test_a_policy_whose_act_raises_is_refused():
    class Moody(LinearActor):
        def act(self, obs, test=False):
            if self.layer.bias.item() > 1:
                raise RuntimeError("not today\nand not tomorrow")
            return super().act(obs, test)

    door = intake(Moody)
    assert deliver(door, actor(Moody), 1)
    assert not deliver(door, actor(Moody, bias=2.0), 2)
    assert door.alarm.endswith("act() raised RuntimeError: not today and not tomorrow on a probe observation")


def test_the_newest_real_observation_is_part_of_the_probe():
    door = intake(Free)
    policy = actor(Free, bias=-0.5)
    with torch.no_grad():
        policy.layer.weight[0, 1] = 1e-9
    assert deliver(door, policy, 1)
    door.probe.newest = np.array([0.0, 2e9], np.float32)
    assert not deliver(door, policy, 2)
    assert "1.5 at element (0,) is outside" in door.alarm
    door.probe.newest = np.array([0.0, np.nan], np.float32)  # a broken sensor is not the policy's fault
    assert deliver(door, policy, 3)


def test_observations_that_an_untrained_actor_cannot_bear_are_not_asked():
    class Picky(LinearActor):
        def act(self, obs, test=False):
            if float(obs[0, 0]) > 1:
                raise ValueError("this is no observation of mine")
            return super().act(obs, test)

    door = intake(Picky)
    assert deliver(door, actor(Picky), 1)
    door.probe.newest = np.array([7.0, 0.0], np.float32)
    assert not deliver(door, actor(Picky), 2)


def test_sampling_the_probe_leaves_the_environments_random_numbers_alone():
    space = spaces.Box(-math.inf, math.inf, (3,), np.float32)
    space.seed(7)
    expected = space.sample()
    space.seed(7)
    PolicyProbe(space, BOX)
    assert space.sample().tolist() == expected.tolist()


def test_preprocessors_that_refuse_samples_do_not_stop_the_worker():
    def picky(obs):
        raise ValueError("no pixel is that bright")

    PolicyProbe(BOX, BOX, picky).check(actor())


def test_a_policy_that_is_refused_does_not_cost_the_one_that_waits():
    door = intake()
    assert deliver(door, actor(bias=0.5), 1)
    assert not deliver(door, actor(bias=math.nan), 2)
    assert deliver(door, actor(bias=0.75), 3)
    assert not deliver(door, actor(bias=math.inf), 4)
    ready = door.take(actor())
    assert ready.version == 3
    assert ready.actor.layer.bias.item() == 0.75


def test_large_weights_of_half_precision_are_finite():
    class Half(LinearActor):
        def __init__(self, *both):
            super().__init__(*both)
            self.register_buffer("scale", torch.full((100,), 6e4, dtype=torch.float16))

    assert deliver(intake(Half), actor(Half), 1)


def test_taking_in_policies_needs_three_instances_at_most():
    made = []

    def make():
        made.append(actor())
        return made[-1]

    env = CountingEnv()
    door = PolicyIntake(make, PolicyProbe(env.observation_space, env.action_space))
    acting = actor()
    for version in range(1, 20):
        assert deliver(door, actor(bias=version / 100), version)
        if version % 3:
            acting = door.take(acting).actor
    assert len(made) == 2


# -- actions -------------------------------------------------------------------------------------------

BOTH = spaces.Tuple((BOX, spaces.Discrete(3)))


@pytest.mark.parametrize(
    ("action", "space"),
    [
        (np.array([1.0, -1.0], np.float32), BOX),
        (np.array([1.0 + 1e-6, -1.0]), BOX),
        (np.array([5e3 + 1e-2], np.float32), spaces.Box(-5e3, 5e3, (1,), np.float32)),
        (np.array([1e30]), spaces.Box(-np.inf, np.inf, (1,))),
        (2, spaces.Discrete(3)),
        (np.array(2), spaces.Discrete(3)),
        (np.array([1, 0]), spaces.MultiDiscrete([2, 2])),
        ((np.zeros(2, np.float32), 1), BOTH),
        ({"a": np.zeros(2)}, spaces.Dict(a=BOX)),
    ],
)
def test_actions_of_a_space_are_seen_as_such(action, space):
    assert action_problem(action, space) == ""
    assert is_finite(action)


@pytest.mark.parametrize(
    ("action", "space"),
    [
        (np.array([1.1, 0.0]), BOX),
        (np.array([np.nan, 0.0]), BOX),
        (np.zeros((2, 1)), BOX),
        (None, BOX),
        ("left", BOX),
        (3, spaces.Discrete(3)),
        (0.5, spaces.Discrete(3)),
        (np.array([2, 0]), spaces.MultiDiscrete([2, 2])),
        ((np.zeros(2), 3), BOTH),
        ((np.zeros(2),), BOTH),
        ({"b": np.zeros(2)}, spaces.Dict(a=BOX)),
        (np.array([np.inf]), spaces.Box(-np.inf, np.inf, (1,))),
    ],
)
def test_what_is_not_in_a_space_is_reported(action, space):
    assert action_problem(action, space)


@pytest.mark.parametrize(
    "dtype", [np.float16, np.float32, np.float64, np.longdouble, np.complex64], ids=lambda d: d.__name__
)
def test_what_is_not_finite_is_seen_and_what_is_large_is_not_mistaken_for_it(dtype):
    for bad in (np.nan, np.inf, -np.inf):
        for values in ([bad], [1, bad], [[bad, -bad], [0, 0]]):
            assert not is_finite(np.array(values, dtype))
            assert not is_finite({"a": (0, [np.array(values, dtype)])})
    assert is_finite(np.full(3, np.finfo(dtype).max))
    assert is_finite(np.array(0, dtype))
    assert not is_finite(float("nan"))
    assert is_finite("text")


# -- at the trainer ------------------------------------------------------------------------------------


def test_worker_and_trainer_say_why_a_policy_does_not_drive_and_the_next_good_one_does(
    house, until, caplog, monkeypatch
):
    monkeypatch.setattr("tmrl_like.trainer.link.refuse_diverged", lambda tensors: None)
    house.server()
    trainer, worker = house.trainer(), house.worker(partial(CountingEnv, step_s=0.001), name="arm")
    caplog.set_level("INFO")
    policy = trainer.training.agent.get_actor()
    trainer.link.broadcast_model(policy)
    house.start(worker.run)
    until(lambda: worker.policy_version == 1)
    policy.layer.bias.data.fill_(math.nan)
    for _ in range(3):
        trainer.link.broadcast_model(policy)
        time.sleep(0.05)
    until(lambda: trainer.link.fleet()["workers_with_alarm"] == 1)
    assert "not finite" in caplog.text
    assert trainer.worker_versions == {"arm": 1}
    policy.layer.bias.data.fill_(0.5)
    newest = trainer.link.broadcast_model(policy)
    until(lambda: trainer.worker_versions == {"arm": newest})
    until(lambda: trainer.link.fleet()["workers_with_alarm"] == 0)
    lines = [r.message for r in caplog.records]
    assert len([line for line in lines if line.startswith("worker arm: policy")]) == 1
    assert "worker arm: all is well again" in lines


def beat(version, worker="w", **condition):
    return m.Beat(worker=worker, policy_version=version, **condition)


def test_a_worker_that_does_not_advance_is_reported_once_and_so_is_its_recovery(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tmrl_like.trainer.fleet.time.monotonic", lambda: now[0])
    caplog.set_level("INFO")
    fleet = Fleet(stalled_after_s=10.0)
    for newest in range(1, 60):
        now[0] += 0.5
        fleet.on_beat(beat(1), newest)
        fleet.on_beat(beat(newest - 1, "slow"), newest)
        fleet.on_beat(beat(0, "expert", expert=True), newest)
    assert fleet.metrics(59) == {
        "workers": 3,
        "workers_with_alarm": 1,
        "workers_stalled": 1,
        "overruns_total": 0,
        "safe_steps_total": 0,
        "env_faults_total": 0,
        "env_rebuilds_total": 0,
        "unacknowledged_samples": 0,
        "policy_lag_versions": 58,
    }
    assert caplog.text.count("worker w has not taken a new policy for 10 s") == 1
    fleet.on_beat(beat(59), 59)
    assert fleet.metrics(59)["workers_stalled"] == 0
    assert caplog.text.count("worker w takes new policies again: it drives version 59") == 1
    assert "slow" not in caplog.text.replace("worker slow is here", "")


def test_a_trainer_that_publishes_rarely_and_a_worker_that_was_away_are_not_stalled(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tmrl_like.trainer.fleet.time.monotonic", lambda: now[0])
    fleet = Fleet(stalled_after_s=10.0)
    for _ in range(100):
        now[0] += 0.5
        fleet.on_beat(beat(1), 1)
    fleet.on_beat(beat(1), 2)
    now[0] += 60.0
    fleet.on_beat(beat(1), 2)
    assert fleet.metrics(2)["workers_stalled"] == 0


def test_the_fleet_knows_who_is_missing_and_why(caplog, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tmrl_like.trainer.fleet.time.monotonic", lambda: now[0])
    fleet = Fleet(30.0)
    assert (fleet.describe(), fleet.is_driving()) == ("", False)
    fleet.on_beat(beat(0, "silent"), 0)
    now[0] += 20.0
    fleet.on_beat(beat(0, "here", alarm="its clock is off"), 0)
    assert fleet.is_driving()
    for _ in range(2):
        now[0] += 1.0
        fleet.on_beat(beat(0, "here", ended="ValueError: no"), 0)
    assert not fleet.is_driving()
    assert fleet.describe() == (
        "worker here no longer drives (ValueError: no); worker silent has not been heard of for 22 s"
    )
    assert caplog.text.count("worker here no longer drives: ValueError: no") == 1
    fleet.on_beat(beat(0, "here", alarm="its clock is off"), 0)
    assert fleet.describe().startswith("worker here is here, and sends none (its clock is off)")


def test_a_script_whose_worker_has_failed_ends(house, monkeypatch):
    monkeypatch.setattr("tmrl_like.trainer.pacing._FIRST_REMINDER_S", 0.01)
    house.server()
    trainer = house.trainer()

    def drive():
        with house.worker(sample_compressor=spoilt, name="arm") as worker, pytest.raises(ZeroDivisionError):
            worker.run()

    failing = house.start(drive)
    with pytest.raises(NoWorkerError, match="no other one drives: ZeroDivisionError: the compressor is broken"):
        trainer.run()
    failing.join()


def test_a_trainer_goes_on_waiting_while_another_worker_drives_or_is_started_again(house, monkeypatch, until, caplog):
    monkeypatch.setattr("tmrl_like.trainer.pacing._FIRST_REMINDER_S", 0.01)
    house.server()
    trainer = house.trainer()
    broken = house.worker(sample_compressor=spoilt, name="broken")
    with pytest.raises(ZeroDivisionError):
        broken.run()
    house.worker(name="fine")
    until(lambda: len(trainer.link.worker_versions()) == 2)
    running = house.start(trainer.run)
    until(lambda: "worker broken no longer drives (ZeroDivisionError" in caplog.text)
    assert "worker fine is here, and sends none" in caplog.text
    broken.close()
    trainer.stop()
    running.join()


def test_a_worker_that_was_closed_says_so(house, until):
    house.server()
    trainer, worker = house.trainer(), house.worker(name="arm")
    until(lambda: trainer.link.worker_versions())
    worker.close()
    until(lambda: "worker arm no longer drives (it was closed)" in trainer.link.who_is_missing())


def spoilt(*sample):
    raise ZeroDivisionError("the compressor is broken")


def test_the_share_of_missed_deadlines_is_of_the_steps_since_the_last_look():
    fleet = Fleet(30.0)
    fleet.on_beat(beat(0, env_steps=1000, overruns=500), 0)
    assert "deadline_miss_share" not in fleet.metrics(0)
    fleet.on_beat(beat(0, env_steps=1100, overruns=510), 0)
    assert fleet.metrics(0)["deadline_miss_share"] == 0.1
    fleet.on_beat(beat(0, env_steps=50, overruns=50), 0)  # a new process under the old name
    fleet.on_beat(beat(0, env_steps=60, overruns=50), 0)
    assert fleet.metrics(0)["deadline_miss_share"] == 0.0


def test_faults_of_environments_are_counted_over_the_fleet_and_each_is_reported_once(caplog):
    caplog.set_level("INFO")
    fleet = Fleet(30.0)
    for faults, rebuilds in ((0, 0), (1, 0), (1, 1), (1, 1)):
        fleet.on_beat(beat(0, env_faults=faults, env_rebuilds=rebuilds), 0)
    fleet.on_beat(beat(0, "other", env_faults=2, env_rebuilds=1), 0)
    metrics = fleet.metrics(0)
    assert (metrics["env_faults_total"], metrics["env_rebuilds_total"]) == (3, 2)
    assert caplog.text.count("worker w: its environment failed; faults so far: 1") == 1
    assert caplog.text.count("worker w: its environment was rebuilt") == 1


def test_workers_that_are_gone_are_forgotten_and_what_they_did_still_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tmrl_like.trainer.fleet.time.monotonic", lambda: now[0])
    monkeypatch.setattr("tmrl_like.trainer.fleet._WORKERS_KEPT", 10)
    fleet = Fleet(30.0)
    for k in range(100):
        now[0] += 10.0
        fleet.on_beat(beat(0, f"w{k}", overruns=3, safe_steps=2, env_faults=1, env_rebuilds=1), 0)
    metrics = fleet.metrics(0)
    totals = [metrics[f"{name}_total"] for name in ("overruns", "safe_steps", "env_faults", "env_rebuilds")]
    assert totals == [300, 200, 100, 100]
    assert metrics["workers"] == 1
    assert len(fleet._conditions) <= 10
    for k in range(20):  # all alive
        fleet.on_beat(beat(0, f"v{k}"), 0)
    assert fleet.metrics(0)["workers"] == 21


def test_a_fault_of_a_workers_environment_arrives_at_the_trainer(house, until):
    house.server()
    trainer = house.trainer()
    raise_at = iter((7, 0))
    worker = house.worker(lambda: CountingEnv(step_s=0.001, raise_at=next(raise_at)), name="arm")
    house.start(worker.run)
    until(lambda: trainer.link.fleet()["env_rebuilds_total"] == 1)
    assert trainer.link.fleet()["env_faults_total"] == worker.loop.env.faults == 1


def test_loading_that_fails_changes_nothing():
    mine = actor(bias=0.5)
    with pytest.raises(PolicyError, match="float64 instead of float32"):
        mine.load_weights(actor(bias=0.25).double().weights())
    assert mine.layer.bias.item() == 0.5


# -- from the disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", _unfit())
def test_weights_from_the_disk_pass_the_same_checks_as_those_from_the_network(reason, tmp_path):
    cls, unfit = _unfit()[reason]
    unfit.save(tmp_path / "policy.safetensors")
    with pytest.raises(PolicyError, match=reason) as caught:
        RolloutWorker(CountingEnv, cls, standalone=True, model_path=tmp_path / "policy.safetensors")
    assert str(caught.value).startswith(f"{tmp_path / 'policy.safetensors'}: ")
    assert "\n" not in str(caught.value)
