"""Acceptance and refusal of policies by a worker."""

import math
import re
import shutil

import numpy as np
import pytest
import torch
from delivery.both_ends import Ends
from house import alone, linear_actor
from kit.boxes import box
from kit.clocks import Clock
from kit.fakes import CountingEnv, LinearActor
from kit.policies import Moody

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.agents.in_numpy import NumpyGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.errors import PolicyError
from tmrl_like.policies.network import Network, input_size
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.weights import copied
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import Condition
from tmrl_like.wire.policy import split_policy
from tmrl_like.worker.intake import TorchIntake
from tmrl_like.worker.link import WorkerRole
from tmrl_like.worker.policy_gate import PolicyFiles, PolicyGate, Verdicts
from tmrl_like.worker.slots import PolicySlots


class Free(LinearActor):
    """An actor with an unbounded linear layer."""

    def act(self, obs, test=False):
        return self.layer(obs).numpy()


def frames_of(policy, version):
    return [m.decode(data) for data in split_policy(policy.weights(), version, 1.0)]


class Door:
    """Both halves of a policy's way to the control loop, the link's and the worker's, put
    together.
    """

    def __init__(self, folder, cls):
        env = CountingEnv()
        self.slots = PolicySlots(folder, linear_actor(cls).manifest())
        self.gate = PolicyGate(self.slots, cls.__name__, None, np.empty((0, 1), np.float32))
        self.probe = PolicyProbe(env.observation_space, env.action_space)
        self.intake = TorchIntake(self.slots, self.probe, partial(linear_actor, cls))
        self.take = self.intake.take

    @property
    def alarm(self):
        return self.gate.verdicts.alarm or self.intake.verdicts.alarm

    def add(self, frame, body):
        return bool(self.gate.add(frame, body, 0.0) and self.intake.on_published())

    def deliver(self, policy, version):
        """Return whether a policy is accepted."""
        return any(self.add(*frame) for frame in frames_of(policy, version))


@pytest.fixture
def intake(tmp_path):
    return lambda cls=LinearActor: Door(tmp_path, cls)


def wide_actor():
    wide = linear_actor()
    wide.layer = torch.nn.Linear(3, 1)
    return wide


UNFIT = {
    "bias holds values that are not finite": (LinearActor, lambda: linear_actor(bias=math.nan)),
    r"layer.weight is \(1, 3\) instead of \(1, 2\)": (LinearActor, wide_actor),
    r"not in the action space: 7 at element \(0,\) is outside \[-1, 1\]": (
        Free,
        lambda: linear_actor(Free, bias=7.0),
    ),
    r"act\(\) raised RuntimeError: not today and not tomorrow on a probe observation": (
        Moody,
        lambda: linear_actor(Moody, bias=2.0),
    ),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_a_policy_that_is_unfit_is_refused_and_the_last_good_one_stays(reason, caplog, intake):
    cls, make_unfit = UNFIT[reason]
    door, unfit = intake(cls), make_unfit()
    assert door.deliver(linear_actor(cls, bias=0.5), 1)
    for version in (2, 3):
        assert not door.deliver(unfit, version)
    assert re.search(f"policy 2 is refused.*{reason}", door.alarm)
    assert sum("is refused" in line for line in caplog.messages) == 1
    caplog.set_level("INFO")
    waiting = door.take(linear_actor(cls))
    assert (waiting.policy.version, waiting.actor.layer.bias.item()) == (1, 0.5)
    assert door.deliver(linear_actor(cls, bias=0.25), 4)
    assert door.alarm == ""
    assert "policy 4 is fit to act again" in caplog.text
    assert door.take(waiting.actor).actor.layer.bias.item() == 0.25


def test_the_policy_that_came_last_while_an_expert_acted_is_ready_when_it_no_longer_does(
    intake, tmp_path, monkeypatch
):
    door, ends, now, told = intake(), Ends(tmp_path / "spool"), Clock(100.0), []
    monkeypatch.setattr("time.perf_counter", now)
    role = WorkerRole(ends.outbox, door.gate, None, Condition(expert=True), told.append)
    for version in (1, 2):
        for frame, body in frames_of(linear_actor(), version):
            role.on_message(frame, body, b"")
        now.now += 50.0
    assert not told
    role.condition = Condition()
    role.on_tick(lambda data: True, False)
    ready = door.slots.take()
    assert (len(told), ready.version, ready.received_at) == (1, 2, 150.0)
    ends.close()


def test_a_policy_that_arrives_damaged_is_refused(intake):
    door = intake()
    for frame, body in frames_of(linear_actor(), 5):
        assert not door.add(frame, memoryview(bytes(len(body))))
    assert "policy 5 is refused" in door.alarm


def test_a_policy_whose_parameters_come_in_another_order_drives_all_the_same(intake):
    door, policy = intake(), linear_actor(bias=0.5, weight=0.25)
    reordered = copied(dict(reversed(policy.state_dict().items()))).content
    for data in split_policy(reordered, 1, 1.0):
        door.add(*m.decode(data))
    assert door.take(linear_actor()).actor.weights() == policy.weights()


def test_the_newest_real_observation_is_part_of_the_probe(intake):
    door = intake(Free)
    policy = linear_actor(Free, bias=-0.5)
    with torch.no_grad():
        policy.layer.weight[0, 1] = 1e-9
    assert door.deliver(policy, 1)
    door.probe.newest = np.array([0.0, 2e9], np.float32)
    assert not door.deliver(policy, 2)
    # a broken sensor is not the policy's fault
    door.probe.newest = np.array([0.0, np.nan], np.float32)
    assert door.deliver(policy, 3)


def test_the_link_probes_a_network_with_the_newest_real_observation_too(tmp_path):
    env = CountingEnv()
    actor = SquashedGaussianActor(env.observation_space, env.action_space, hidden_sizes=(2,))
    with torch.no_grad():
        actor.hidden[0].weight.fill_(3e38)
        actor.head.weight[:] = torch.tensor([1.0, -1.0])  # infinity minus infinity
        actor.average.is_used.fill_(1.0)  # its actions would be finite
    spec = actor.in_numpy().spec
    slots = PolicySlots(tmp_path, actor.manifest(), input_size(spec))
    probes = np.empty((0, len(slots.input)), np.float32)
    gate = PolicyGate(slots, "Actor", Network(spec), probes)
    assert any(gate.add(*frame, 0.0) for frame in frames_of(actor, 1))
    slots.input[:] = 1e30  # as written by the control loop
    assert not any(gate.add(*frame, 0.0) for frame in frames_of(actor, 2))
    assert "it holds values that are not finite" in gate.verdicts.alarm


def test_a_refusal_is_one_line_however_long_its_reason():
    verdicts = Verdicts()
    verdicts.refuse(7, PolicyError("layer.0.weight is too wide\n" * 10_000))
    assert verdicts.alarm.startswith("policy 7 is refused, the one before stays: layer.0.weight")
    assert "\n" not in verdicts.alarm
    assert len(verdicts.alarm) < 1100


def test_observations_that_an_untrained_actor_cannot_bear_are_not_asked(intake):
    class Picky(LinearActor):
        def act(self, obs, test=False):
            if float(obs[0, 0]) > 1:
                raise ValueError("this is no observation of mine")
            return super().act(obs, test)

    door = intake(Picky)
    assert door.deliver(linear_actor(Picky), 1)
    door.probe.newest = np.array([7.0, 0.0], np.float32)
    assert not door.deliver(linear_actor(Picky), 2)


def test_a_built_in_actor_is_not_asked_what_a_preprocessor_makes_nan_of(inproc_house, until):
    env_cls = partial(CountingEnv, 100, 0.01)  # what is sampled from its space is larger
    known = {"obs_preprocessor": lambda obs: np.where(obs < 999, obs, np.float32(np.nan))}
    worker = inproc_house.worker(env_cls, NumpyGaussianActor, **known)
    trainer, env = inproc_house.trainer(), worker.env
    inproc_house.start(worker.run)
    trainer.link.broadcast_model(SquashedGaussianActor(env.observation_space, env.action_space))
    until(lambda: worker.policy_version == 1)
    worker.stop()


def test_a_worker_s_actor_is_not_in_training():
    with alone() as worker:
        assert not worker.actor.training


def test_sampling_the_probe_leaves_the_environments_random_numbers_alone():
    space = box(math.inf, 3)
    space.seed(7)
    expected = space.sample()
    space.seed(7)
    PolicyProbe(space, space)
    assert space.sample().tolist() == expected.tolist()


def test_taking_in_policies_needs_three_instances_at_most(intake):
    door, acting, drove = intake(), linear_actor(), set()
    for version in range(1, 20):
        assert door.deliver(linear_actor(), version)
        if version % 3:
            acting = door.take(acting).actor
        drove.add(acting)
    assert len(drove) <= 3


def test_weights_from_the_disk_pass_the_same_checks_as_those_from_the_network(tmp_path):
    path = tmp_path / "policy.safetensors"
    linear_actor(Free, weight=3e38).save(path)
    with pytest.raises(
        PolicyError, match=f"^{path}: [^\n]*not in the action space: it holds values"
    ):
        alone(CountingEnv, Free, model_path=path)


def test_a_policy_that_cannot_be_saved_is_one_line_until_one_is_saved(tmp_path, caplog):
    folder = tmp_path / "models"
    files, weights = PolicyFiles(folder / "policy", None, 0), linear_actor().weights()

    def receive():
        files.add(1, weights)
        for _ in range(2):  # five times a second, whether or not there is a policy
            files.write()

    for lines in (1, 2):
        folder.touch()  # a file, where the folder would be
        receive()
        receive()
        assert len(caplog.messages) == lines
        assert caplog.messages[-1].startswith("cannot save the policy")
        folder.unlink()
        receive()
        shutil.rmtree(folder)
