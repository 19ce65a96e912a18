"""The safe action drives when the policy must not, and every step says what drove."""

import logging
import math

import numpy as np
import pytest
from gymnasium import spaces
from house import alone, linear_actor, publish, take

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import ConfigError, RefusedError
from tmrl_like.testing.fakes import CountingEnv, LinearActor
from tmrl_like.types import ActionSource
from tmrl_like.wire import messages as m
from tmrl_like.worker.takeover import to_action

SOON = OutboxOptions(max_age_s=0.0)
BRAKE = [-1.0]
INCIDENT = "the safe action drives: the policy's action is not finite: array([nan], dtype=float32)"


class RecordingEnv(CountingEnv):
    """Keeps the actions that it was sent."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.sent = []

    def step(self, action):
        self.sent.append(float(action[0]))
        return super().step(action)


class SometimesNan(LinearActor):
    """Its third action, and every one between 100 and 110, is NaN."""

    calls = 0

    def act(self, obs, test=False):
        self.calls += 1
        return np.full(1, np.nan if self.calls == 3 or 100 <= self.calls < 110 else 0.25, np.float32)


class Wavering(LinearActor):
    """Every other action of its first hundred is not finite."""

    calls = 0

    def act(self, obs, test=False):
        self.calls += 1
        return np.full(1, np.nan if self.calls % 2 and self.calls < 100 else 0.25, np.float32)


def test_an_incident_is_logged_once_and_so_is_its_end(caplog):
    caplog.set_level(logging.INFO)
    with alone(CountingEnv, Wavering) as worker:
        driver, obs = worker.loop.driver, np.zeros(2, np.float32)
        for step in range(100):
            driver.choose(obs, False, 1000.0 + 0.05 * step)
        assert worker.condition().alarm == INCIDENT
        assert driver.choose(obs, False, 1006.0)[1] is ActionSource.POLICY
        assert worker.condition().alarm == ""
        assert worker.condition().safe_steps == 50
        worker.run_in_control_thread(lambda env: None)
    assert [r.message for r in caplog.records if "drives" in r.message] == [
        INCIDENT,
        "the policy drives again; the safe action drove 50 steps",
    ]


def test_an_environment_that_changes_the_action_in_place_does_not_change_the_next_one():
    class Env(RecordingEnv):
        def step(self, action):
            result = super().step(action)
            action[:] = 7
            return result

    with alone(Env, Wavering, safe_action=BRAKE) as worker:
        worker.run_episode()
        assert worker.env.sent == [-1.0, 0.25] * 5


@pytest.mark.parametrize(
    ("value", "space"),
    [
        ([0, 1], spaces.Box(-1, 1, (2,), np.float32)),
        (2, spaces.Discrete(3)),
        ([1, 0], spaces.MultiDiscrete([2, 2])),
        ([[0.5], 1], spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Discrete(2)))),
        ({"a": [0.5]}, spaces.Dict(a=spaces.Box(-1, 1, (1,)))),
    ],
)
def test_a_configured_action_takes_the_form_of_its_space(value, space):
    assert space.contains(to_action(value, space))


@pytest.mark.parametrize(
    ("value", "space"),
    [
        *((value, spaces.Box(-1, 1, (1,))) for value in ([2.0], [0.0, 0.0], "stop", [math.nan], [[0.0], [0.0, 1.0]])),
        (1.5, spaces.Discrete(3)),  # a fraction is not a choice
        ([0.5, 1], spaces.MultiDiscrete([2, 2])),
    ],
)
def test_an_action_outside_of_its_space_is_refused(value, space):
    with pytest.raises(ConfigError, match="safe_action is"):
        to_action(value, space)


def test_a_safe_action_that_cannot_be_is_refused_before_anything_moves():
    with pytest.raises(ConfigError, match="safe_action is"):
        alone(safe_action=[2.0])


@pytest.mark.fault("robots", "a policy gives NaN", "the safe action is sent instead")
@pytest.mark.parametrize("safe_action", [None, BRAKE])
def test_an_action_that_is_not_finite_is_never_sent(safe_action, caplog):
    worker = alone(RecordingEnv, SometimesNan, safe_action=safe_action)
    worker.run_episodes(nb_episodes=12)
    assert len(worker.env.sent) == 120
    safe = 0.0 if safe_action is None else -1.0
    assert [i for i, action in enumerate(worker.env.sent) if action == safe] == [2, *range(99, 109)]
    assert set(worker.env.sent) == {0.25, safe}
    assert worker.condition().safe_steps == 11
    assert "the policy's action is not finite" in caplog.text


def test_without_any_policy_the_safe_action_drives_and_samples_say_so(house, until):
    trainer = house.trainer()
    worker = house.worker(
        partial(CountingEnv, step_s=0.001), max_policy_age_s=60.0, safe_action=BRAKE, outbox=SOON, name="arm"
    )
    house.start(worker.run)
    samples = take(trainer, lambda taken: len(taken.samples) > 30).samples
    steps = [s for s in samples if not s.info.is_reset]
    assert {s.info.timing.source for s in steps} == {ActionSource.SAFE}
    assert {float(s.act[0]) for s in steps} == {-1.0}
    assert {s.info.timing.source for s in samples if s.info.is_reset} == {ActionSource.POLICY}
    until(lambda: trainer.link.fleet()["workers_with_alarm"] == 1)
    publish(trainer)
    take(trainer, lambda taken: driven_by(taken) is ActionSource.POLICY)
    until(lambda: trainer.link.fleet()["workers_with_alarm"] == 0)
    assert trainer.link.fleet()["safe_steps_total"] == worker.condition().safe_steps > 0


def driven_by(taken):
    """Who drove in the newest sample; None: there is none, or it is a reset's."""
    if taken.samples and not taken.samples[-1].info.is_reset:
        return taken.samples[-1].info.timing.source
    return None


@pytest.mark.fault("robots", "the trainer falls silent while a robot moves", "the safe action drives until it is back")
def test_a_trainer_that_falls_silent_is_replaced_by_the_safe_action_until_it_is_back(house, until, caplog):
    caplog.set_level(logging.INFO)
    trainer = house.trainer()
    policy = trainer.training.agent.get_actor()

    def until_driven_by(source, publish):
        def enough(taken):
            if publish:
                trainer.link.broadcast_model(policy)
            return driven_by(taken) is source

        return take(trainer, enough).samples

    env = partial(CountingEnv, step_s=0.002, episode_steps=10**6)
    worker = house.worker(env, max_policy_age_s=0.3, safe_action=BRAKE, outbox=SOON)
    trainer.link.broadcast_model(policy)
    until(lambda: worker.lanes[0].intake.has_new)
    house.start(worker.run)
    samples = until_driven_by(ActionSource.POLICY, publish=True)
    samples += until_driven_by(ActionSource.SAFE, publish=False)
    until(lambda: "no new policy has been received for 0.3 s" in caplog.text)
    samples += until_driven_by(ActionSource.POLICY, publish=True)
    steps = [s for s in samples if not s.info.is_reset]
    assert all((float(s.act[0]) == -1.0) == (s.info.timing.source is ActionSource.SAFE) for s in steps)


def test_a_policy_that_the_server_repeats_is_not_newer_than_it_was(house, until):
    trainer, worker = house.trainer(), house.worker(max_policy_age_s=60.0)
    publish(trainer)
    assert worker.update_actor_weights(blocking=True)
    expires_at = worker.loop.driver.expires_at
    trainer.link.on_welcome(m.Welcome(1, policy_wanted=True), False)
    assert worker.update_actor_weights(blocking=True)
    assert worker.loop.driver.expires_at == expires_at


class Hardware(RecordingEnv):
    """Moves hardware, and counts its resets."""

    moves_hardware = True
    resets = 0

    def reset(self, **kwargs):
        Hardware.resets += 1
        return super().reset(**kwargs)


@pytest.fixture
def hardware(monkeypatch, caplog):
    monkeypatch.setattr(Hardware, "resets", 0)
    caplog.set_level(logging.INFO)
    return Hardware


RUNS = {
    "run": lambda worker: worker.run(nb_episodes=1),
    "run_episodes": lambda worker: worker.run_episodes(nb_episodes=1),
    "run_episode": lambda worker: worker.run_episode(),
    "reset": lambda worker: worker.reset(collect_samples=True),
    "run_env_benchmark": lambda worker: worker.run_env_benchmark(1),
}


@pytest.mark.parametrize("how", RUNS)
def test_a_worker_that_waits_for_a_policy_touches_nothing_before_it_has_one(how, house, until, hardware, caplog):
    trainer = house.trainer()
    worker = house.worker(hardware, wait_for_policy=True)
    running = house.start(RUNS[how], worker)
    until(lambda: "holds still until a policy arrives" in caplog.text)
    assert worker.wait_connected(5.0)
    assert (hardware.resets, worker.condition().env_steps) == (0, 0)
    publish(trainer)
    running.join(20.0)
    assert worker.policy_version == 1
    assert hardware.resets > 0
    RUNS[how](worker)
    assert caplog.text.count("holds still") == 1
    assert "hardware" not in caplog.text


def test_a_worker_that_waits_can_be_stopped(house, until, hardware, caplog):
    worker = house.worker(hardware, wait_for_policy=True)
    running = house.start(worker.run)
    until(lambda: "holds still" in caplog.text)
    worker.stop()
    running.join(20.0)
    assert not running.is_alive()
    assert hardware.resets == 0


def test_a_worker_that_waits_raises_what_it_is_refused_for(house, hardware, tmp_path):
    assert house.trainer(model_path=tmp_path / "model").link.session.wait_connected(60)
    worker = house.worker(hardware, wait_for_policy=True, model_path=tmp_path / "model")
    with pytest.raises(RefusedError, match="keep"):
        worker.run()
    assert hardware.resets == 0


def test_experts_standalone_workers_and_those_with_weights_need_no_policy(tmp_path, house, hardware, caplog):
    linear_actor().save(tmp_path / "p")
    limits = {"wait_for_policy": True, "max_policy_age_s": 60.0}
    expert = house.worker(hardware, **limits)
    expert.run(nb_episodes=1, expert=True)
    with_weights = house.worker(hardware, model_path=tmp_path / "p", **limits)
    with_weights.run(nb_episodes=1)
    assert "hardware" not in caplog.text
    by_itself = alone(hardware, **limits)
    by_itself.run_episodes(nb_episodes=1)
    assert hardware.resets == 3
    assert {worker.condition().safe_steps for worker in (expert, with_weights, by_itself)} == {0}
    assert "holds still until a policy arrives" not in caplog.text


def test_a_trainer_and_a_worker_that_waits_for_its_first_policy_do_not_wait_for_each_other(house, hardware):
    trainer = house.trainer(training={"start_training": 20})
    worker = house.worker(hardware, wait_for_policy=True)
    house.start(worker.run)
    trainer.run()
    assert trainer.training.total_updates == 20


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"max_policy_age_s": 60.0, "safe_action": BRAKE}, False)], ids=["", "safe"]
)
def test_hardware_and_an_untrained_policy_are_one_warning_before_the_first_reset(
    options, warns, house, hardware, caplog
):
    worker = house.worker(hardware, **options)
    worker.run(nb_episodes=1)
    worker.run(nb_episodes=1)
    warned = [record for record in caplog.records if "wait_for_policy" in record.getMessage()]
    assert [record.levelname for record in warned] == warns * ["WARNING"]
