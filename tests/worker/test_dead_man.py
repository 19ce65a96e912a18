"""The safe action replaces a policy that must not drive, and every step records what drove."""

import itertools
import logging
import threading
import time
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from house import alone, linear_actor, publish, take
from kit.boxes import box
from kit.environments import Recording, acting
from kit.fakes import CountingEnv, LinearActor

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import ConfigError, RefusedError
from tmrl_like.types import ActionSource
from tmrl_like.wire import messages as m
from tmrl_like.worker.takeover import to_action

SOON = OutboxOptions(max_age_s=0.0)
BRAKE = [-1.0]
BOX = box(1, 2)
INCIDENT = (
    "the safe action drives: the policy's action is not finite: "
    "array([nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan"
)


class Spoiling(Recording):
    """An environment that changes the actions it receives in place."""

    def __init__(self):
        super().__init__()
        self.action_space = box(1, 30)

    def step(self, action):
        result = super().step(action)
        action[:] = 7
        return result


# in every second step, many numbers that are not finite
Wavering = acting(lambda obs: np.full(30, np.nan if obs[0, 1] % 2 else 0.25, np.float32))


@pytest.mark.fault("robots", "a policy gives NaN", "the safe action is sent instead")
@pytest.mark.parametrize(("safe_action", "safe"), [(None, 0.0), (30 * [-1.0], -1.0)])
def test_an_action_that_is_not_finite_is_never_sent_and_an_incident_is_logged_once(
    safe_action, safe, caplog
):
    """An incident ends when a second has passed without such an action."""
    caplog.set_level(logging.INFO)
    with alone(Spoiling, Wavering, safe_action=safe_action) as worker:
        worker.run_episodes(nb_episodes=12)
        assert worker.env.sent == [0.25, safe] * 60
        assert worker.condition().alarm == INCIDENT
        worker.loop.driver.choose(np.zeros(2, np.float32), False, time.perf_counter() + 2.0)
        assert (worker.condition().alarm, worker.condition().safe_steps) == ("", 60)
        worker.run_in_control_thread(lambda: None)
    assert [line for line in caplog.messages if "drives" in line] == [
        INCIDENT,
        "the policy drives again; the safe action drove 60 steps",
    ]


def test_a_configured_action_takes_the_form_of_its_space():
    space = spaces.Dict(arm=BOX, gripper=spaces.Discrete(2))
    assert space.contains(to_action({"arm": [0.5, 0], "gripper": 1}, space))


@pytest.mark.parametrize(
    ("value", "space"),
    [
        ([2.0, 0.0], BOX),
        ([[0.0], [0.0, 1.0]], BOX),
        (1.5, spaces.Discrete(3)),  # not a whole number
    ],
)
def test_an_action_outside_of_its_space_is_refused_before_anything_moves(value, space):
    env = CountingEnv()
    env.action_space = space
    with pytest.raises(ConfigError, match="safe_action is"):
        alone(lambda: env, safe_action=value)


@pytest.mark.fault(
    "robots",
    "the trainer falls silent while a robot moves",
    "the safe action drives until it is back",
)
def test_before_the_first_policy_and_while_the_trainer_is_silent_the_safe_action_drives(
    inproc_house, until
):
    trainer = inproc_house.trainer()
    env = partial(CountingEnv, step_s=0.002, episode_steps=10**6)
    worker = inproc_house.worker(env, max_policy_age_s=0.3, safe_action=BRAKE, outbox=SOON)

    def drives(source):
        """Take samples up to one that this drove; the safe action, and no other, is -1."""
        *_, newest = samples = take(trainer, lambda taken: taken.samples).samples
        for sample in samples:
            is_safe = sample.info.timing.source is ActionSource.SAFE
            assert is_safe == (float(sample.act[0]) == -1.0)
        return newest.info.timing.source is source

    def has_alarm():
        return trainer.link.fleet()["workers_with_alarm"]

    inproc_house.start(worker.run)
    until(lambda: drives(ActionSource.SAFE) and has_alarm())
    until(lambda: publish(trainer) and drives(ActionSource.POLICY))
    until(lambda: drives(ActionSource.SAFE))
    until(lambda: publish(trainer) and drives(ActionSource.POLICY) and not has_alarm())
    assert trainer.link.fleet()["safe_steps_total"] == worker.condition().safe_steps > 0


def test_a_policy_that_the_server_repeats_is_not_newer_than_it_was(inproc_house, until):
    trainer, worker = inproc_house.trainer(), inproc_house.worker(max_policy_age_s=60.0)
    publish(trainer)
    until(worker.loop.driver.refresh)
    expires_at = worker.loop.driver.expires_at
    trainer.link.on_welcome(m.Welcome(1, policy_wanted=True), False)
    until(worker.loop.driver.refresh)
    assert worker.loop.driver.expires_at == expires_at


@pytest.fixture
def hardware(caplog):
    """An environment that moves hardware and counts its resets."""
    caplog.set_level(logging.INFO)

    class Hardware(CountingEnv):
        moves_hardware = True
        resets: ClassVar = []

        def reset(self, **kwargs):
            self.resets.append("reset")
            return super().reset(**kwargs)

    return Hardware


@pytest.mark.parametrize(
    ("how", "arguments"),
    [
        ("run", {"nb_episodes": 1}),
        ("run_env_benchmark", {"nb_steps": 1}),
    ],
)
def test_a_worker_that_waits_for_a_policy_touches_nothing_before_it_has_one(
    how, arguments, inproc_house, until, hardware, caplog
):
    trainer = inproc_house.trainer()
    worker = inproc_house.worker(hardware, wait_for_policy=True)
    running = inproc_house.start(getattr(worker, how), **arguments)
    until(lambda: "holds still until a policy arrives" in caplog.text)
    assert (hardware.resets, worker.condition().env_steps) == ([], 0)
    publish(trainer)
    running.join(20.0)
    assert worker.policy_version == 1
    assert hardware.resets
    assert "hardware" not in caplog.text


def test_a_worker_that_waits_has_a_policy_in_every_environment_before_it_moves_any(
    inproc_house, until
):
    loading = itertools.count()
    may_load = threading.Event()

    class Slow(LinearActor):
        """Only the first environment's actor loads at once."""

        def load_weights(self, weights):
            if next(loading):
                may_load.wait()
            super().load_weights(weights)

    trainer = inproc_house.trainer()
    worker = inproc_house.worker(CountingEnv, Slow, envs=2, wait_for_policy=True)
    running = inproc_house.start(worker.run, nb_episodes=2)
    publish(trainer)
    until(lambda: worker.lanes[0].loop.driver.received_at)
    running.join(0.1)
    assert worker.condition().env_steps == 0
    may_load.set()
    running.join(20.0)
    assert [lane.loop.counts.policy_version for lane in worker.lanes] == [1, 1]


def test_a_worker_that_waits_can_be_stopped(inproc_house, until, hardware, caplog):
    worker = inproc_house.worker(hardware, wait_for_policy=True)
    running = inproc_house.start(worker.run)
    until(lambda: "holds still" in caplog.text)
    worker.stop()
    running.join(20.0)
    assert not running.is_alive()
    assert not hardware.resets


def test_a_worker_that_waits_raises_what_it_is_refused_for(inproc_house, hardware, tmp_path):
    trainer = inproc_house.trainer(model_path=tmp_path / "model")
    assert trainer.link.session.wait_connected(60)
    worker = inproc_house.worker(hardware, wait_for_policy=True, model_path=tmp_path / "model")
    with pytest.raises(
        RefusedError, match=r"this worker and the trainer keep .* give each its own model_path"
    ):
        worker.run()


def test_experts_standalone_workers_and_those_with_weights_need_no_policy(
    tmp_path, inproc_house, hardware, caplog
):
    linear_actor().save(tmp_path / "p")
    limits = {"wait_for_policy": True, "max_policy_age_s": 60.0}
    expert = inproc_house.worker(hardware, **limits)
    with_weights = inproc_house.worker(hardware, model_path=tmp_path / "p", **limits)
    by_itself = alone(hardware, **limits)
    expert.run(nb_episodes=1, expert=True)
    with_weights.run(nb_episodes=1)
    assert "hardware" not in caplog.text
    by_itself.run(nb_episodes=1)
    for worker in (expert, with_weights, by_itself):
        assert (worker.condition().env_steps, worker.condition().safe_steps) == (10, 0)


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"max_policy_age_s": 60.0, "safe_action": BRAKE}, False)]
)
def test_hardware_and_an_untrained_policy_are_one_warning_before_the_first_reset(
    options, warns, inproc_house, hardware, caplog
):
    worker = inproc_house.worker(hardware, **options)
    for _ in range(2):
        worker.run(nb_episodes=1)
    warned = [record for record in caplog.records if "wait_for_policy" in record.getMessage()]
    assert [record.levelname for record in warned] == warns * ["WARNING"]
