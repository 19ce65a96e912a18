"""Environments and trainer in one process: equal seeds give equal parameters, and a debugger
can follow everything.
"""

import math
import signal
import threading

import numpy as np
import pytest
import torch
from kit.environments import calling
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory

from tmrl_like import Experiment, GenericGymEnv, partial
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.metrics.reading import read_records
from tmrl_like.replay import ReplayMemory


class Seeds(CountingEnv):
    """An environment that records the seeds of its resets, and the threads that step it."""

    seeds, threads = [], set()

    def reset(self, *, seed=None, options=None):
        self.seeds.append(seed)
        return super().reset()

    def step(self, action):
        self.threads.add(threading.get_ident())
        return super().step(action)


class Threads(CountingAgent):
    """An agent that records the threads that train it, other threads, and how many torch uses."""

    threads, others, cores = set(), set(), set()

    def train(self, batch):
        self.threads.add(threading.get_ident())
        self.others.update(threading.enumerate())
        self.cores.add(torch.get_num_threads())
        return super().train(batch)


@pytest.fixture
def four_cores(monkeypatch):
    """Simulate a machine with four cores; restore torch's number of threads afterwards."""
    before = torch.get_num_threads()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_is_recorded_yet():
    for records in (Seeds.seeds, Seeds.threads, Threads.threads, Threads.others, Threads.cores):
        records.clear()


def run(tmp_path, checkpoint=None, envs=1, interval=0, trainer=None, **parts):
    """Run an experiment; `trainer` holds options of the trainer, `parts` replace its parts."""
    short = {"rounds": 2, "steps": 20, "update_model_interval": 1, "epochs": 1}
    usual = {
        "env": Seeds,
        "actor": LinearActor,
        "agent": Threads,
        "memory": partial(ListMemory, batch_size=4),
        "worker": {"envs": envs, "test_episode_interval": interval},
        "trainer": short | (trainer or {}),
    }
    files = {"metrics_path": tmp_path / "m.jsonl", "model_path": None, "policies_path": None}
    with Experiment(**usual | parts).make_in_process(
        {"model_path": None}, checkpoint_path=checkpoint, sinks=[], **files
    ) as trainer:
        trainer.run()
        return trainer.training


def test_the_environment_steps_when_training_waits_and_nothing_links_the_two(tmp_path, until):
    before = set(threading.enumerate())
    training = run(tmp_path, interval=1)
    assert Threads.threads == {threading.get_ident()}
    (stepping,) = Seeds.threads
    begun = {thread.ident: thread.name for thread in Threads.others - before}
    assert begun[stepping] == "tmrl-control"
    assert not [name for name in begun.values() if name.startswith("tmrl-link")]
    assert training.total_updates == training.pacer.tasked_steps == 40
    assert set(Seeds.seeds) == {None}
    until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("of_torch", "of_environment", "used"), [(4, "", 3), (2, "", 2), (4, "4", 4)]
)
def test_training_leaves_a_core_to_others_unless_it_was_said_how_many(
    tmp_path, monkeypatch, of_torch, of_environment, used
):
    monkeypatch.setenv("OMP_NUM_THREADS", of_environment)
    torch.set_num_threads(of_torch)
    run(tmp_path)
    assert Threads.cores == {used}
    assert torch.get_num_threads() == of_torch


def test_the_newest_policy_chooses_the_next_action(tmp_path):
    """The bias of a `CountingAgent`'s actor is its number of training steps."""
    trained, given, expected = [], [], []

    class Watched(CountingEnv):
        def step(self, action):
            given.append(float(action[0]))
            expected.append(math.tanh(len(trained)))
            return super().step(action)

    class Watching(CountingAgent):
        def train(self, batch):
            trained.append(batch)
            return super().train(batch)

    run(tmp_path, env=Watched, agent=Watching)
    assert given == pytest.approx(expected)
    assert len(set(given)) > 3


def test_the_trainer_knows_what_its_worker_drives(tmp_path):
    run(tmp_path, trainer={"epochs": 2})
    rounds = [r for r in read_records(tmp_path / "m.jsonl") if r["kind"] == "round"]
    assert len(rounds) == 4
    assert max(record["policy_lag_versions"] for record in rounds) <= 2
    assert {record["dropped_stale_samples_total"] for record in rounds} == {0}


def parameters(tmp_path, seed, envs):
    done = run(
        tmp_path,
        env=GenericGymEnv,
        actor=partial(SquashedGaussianActor, hidden_sizes=(16,)),
        agent=SACAgent,
        memory=partial(ReplayMemory, batch_size=16),
        trainer={"device": "cpu", "start_training": 30, "update_model_interval": 3},
        envs=envs,
        interval=2,
        seed=seed,
    )
    return done.agent.get_actor().weights()


@pytest.mark.parametrize("envs", [1, 3])
def test_equal_seeds_give_equal_parameters_bit_for_bit_and_others_do_not(tmp_path, envs):
    first = parameters(tmp_path, 1, envs)
    assert parameters(tmp_path, 1, envs) == first
    assert parameters(tmp_path, 2, envs) != first


def test_each_environment_has_a_seed_for_its_first_reset(tmp_path):
    run(tmp_path, envs=3, seed=5)
    run(tmp_path, envs=3, seed=6)
    given = [seed for seed in Seeds.seeds if seed is not None]
    assert len(set(given)) == len(given) == 6 < len(Seeds.seeds)


def test_samples_that_cannot_be_learnt_from_end_it(tmp_path, monkeypatch):
    monkeypatch.setattr(CountingEnv, "_obs", lambda self: np.full(2, 1e30, np.float32))
    with pytest.raises(MemoryContractError, match=r"obs holds 1\.0.* not finite"):
        run(tmp_path)


def test_ctrl_c_ends_it_with_a_checkpoint_from_which_it_goes_on(tmp_path, signals_stay):
    def interrupt(env):
        if env.total_steps == 30:
            signal.raise_signal(signal.SIGINT)

    # SIGINT is ignored if tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    checkpoint = tmp_path / "checkpoint"
    stopped = run(tmp_path, checkpoint, env=calling(interrupt))
    assert 10 < stopped.total_updates < 40
    resumed = run(tmp_path, checkpoint)
    assert (resumed.epoch, resumed.round) == (1, 0)
    assert resumed.total_updates >= 40
    assert resumed.total_samples > stopped.total_samples


def test_an_environment_in_real_time_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Seeds, "time_step_s", 0.05, raising=False)
    with pytest.raises(ConfigError, match="runs in real time"):
        run(tmp_path)
