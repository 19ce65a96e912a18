"""Server, environments and trainer in one thread: equal seeds give equal parameters, and a debugger
can follow everything.
"""

import json
import math
import signal
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory

from tmrl_like import GenericGymEnv, TrainingOffline, partial, run_in_process
from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay import ReplayMemory
from tmrl_like.worker.options import WorkerOptions

TINY = Path(__file__).parent / "cli" / "tiny.yaml"


class Noting:
    """Observations recorded by the environments and agents of a test."""

    def __init__(self):
        self.seeds = []  # of resets
        self.threads = set()  # threads that step or train
        self.others = set()  # other threads that exist meanwhile
        self.cores = set()  # numbers of threads that torch uses
        self.trained = 0


class Seeds(CountingEnv):
    """An environment that records the seeds of its resets, and the threads that step it."""

    notes: Noting
    time_step_s = 0.0

    def reset(self, *, seed=None, options=None):
        self.notes.seeds.append(seed)
        return super().reset()

    def step(self, action):
        self.notes.threads.add(threading.get_ident())
        return super().step(action)


class Threads(CountingAgent):
    """An agent that records the threads that train it, other threads, and how many torch uses."""

    notes: Noting

    def train(self, batch):
        self.notes.trained += 1
        self.notes.threads.add(threading.get_ident())
        self.notes.others |= set(threading.enumerate())
        self.notes.cores.add(torch.get_num_threads())
        return super().train(batch)


@pytest.fixture
def four_cores(monkeypatch):
    """Simulate a machine with four cores; restore torch's number of threads afterwards."""
    before = torch.get_num_threads()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3}, raising=False)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def notes(monkeypatch):
    notes = Noting()
    for cls in (Seeds, Threads):
        monkeypatch.setattr(cls, "notes", notes, raising=False)
    return notes


def run(
    tmp_path,
    env_cls=Seeds,
    actor_cls=LinearActor,
    envs=1,
    seed=None,
    interval=0,
    checkpoint=None,
    **fields,
):
    usual = {"rounds": 2, "steps": 20, "update_model_interval": 1, "epochs": 1, "env_cls": env_cls}
    usual |= {"memory_cls": partial(ListMemory, batch_size=4), "training_agent_cls": Threads}
    training = partial(TrainingOffline, **usual | fields)
    kept = {
        "metrics_path": tmp_path / "m.jsonl",
        "checkpoint_path": checkpoint,
        "model_path": None,
        "sinks": [],
    }
    options = {"options": WorkerOptions(envs=envs)}
    return run_in_process(
        training,
        env_cls,
        actor_cls,
        seed=seed,
        worker=options,
        trainer=kept,
        test_episode_interval=interval,
    )


def test_the_environment_steps_in_the_thread_that_trains(tmp_path, notes):
    before = set(threading.enumerate())
    training = run(tmp_path, interval=1)
    assert notes.threads == {threading.get_ident()}
    ours = {"tmrl-control", "tmrl-link", "tmrl-server", "tmrl-link-worker", "tmrl-link-trainer"}
    assert not ours & {thread.name for thread in notes.others - before}
    assert training.total_updates == training.pacer.tasked_steps == 40
    assert set(notes.seeds) == {None}
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("of_torch", "of_environment", "used"), [(4, "", 3), (2, "", 2), (4, "4", 4)]
)
def test_training_leaves_a_core_to_others_unless_it_was_said_how_many(
    tmp_path, monkeypatch, notes, of_torch, of_environment, used
):
    monkeypatch.setenv("OMP_NUM_THREADS", of_environment)
    torch.set_num_threads(of_torch)
    run(tmp_path)
    assert notes.cores == {used}
    assert torch.get_num_threads() == of_torch


def test_the_newest_policy_chooses_the_next_action(tmp_path, notes):
    """The bias of a `CountingAgent`'s actor is its number of training steps."""
    actions = []

    class Watched(Seeds):
        def step(self, action):
            actions.append((float(action[0]), math.tanh(notes.trained)))
            return super().step(action)

    run(tmp_path, Watched)
    assert [given for given, _ in actions] == pytest.approx([expected for _, expected in actions])
    assert len({round(given, 3) for given, _ in actions}) > 3


def rounds_in(tmp_path):
    records = map(json.loads, (tmp_path / "m.jsonl").read_text().splitlines())
    return [record for record in records if record["kind"] == "round"]


def test_the_trainer_knows_what_its_worker_drives(tmp_path):
    run(tmp_path, epochs=2)
    rounds = rounds_in(tmp_path)
    assert len(rounds) == 4
    assert max(record["policy_lag_versions"] for record in rounds) <= 2
    assert [record["dropped_stale_samples_total"] for record in rounds] == [0] * 4


def parameters(tmp_path, seed, envs):
    actor = partial(SquashedGaussianActor, hidden_sizes=(16,))
    fields = {
        "training_agent_cls": partial(SACAgent, actor_cls=actor),
        "memory_cls": partial(ReplayMemory, batch_size=16),
        "device": "cpu",
        "rounds": 1,
        "steps": 40,
        "start_training": 30,
        "update_model_interval": 3,
    }
    done = run(
        tmp_path, partial(GenericGymEnv, id="Pendulum-v1"), actor, envs, seed, interval=2, **fields
    )
    return done.agent.get_actor().weights()


@pytest.mark.parametrize("envs", [1, 3])
def test_equal_seeds_give_equal_parameters_bit_for_bit_and_others_do_not(tmp_path, envs):
    first = parameters(tmp_path, 1, envs)
    assert parameters(tmp_path, 1, envs) == first
    assert parameters(tmp_path, 2, envs) != first


def test_each_environment_has_a_seed_for_its_first_reset(tmp_path, notes):
    run(tmp_path, envs=3, seed=5)
    given = {seed for seed in notes.seeds if seed is not None}
    assert len(given) == sum(seed is not None for seed in notes.seeds) == 3
    assert len(notes.seeds) > 3
    notes.seeds.clear()
    run(tmp_path, envs=3, seed=6)
    assert given.isdisjoint(notes.seeds)


def test_an_environment_that_takes_no_seed_gets_none(tmp_path):
    class Unseeded(CountingEnv):
        def reset(self):
            return super().reset()

    assert run(tmp_path, Unseeded, seed=5).total_updates == 40


def test_an_environment_that_raises_is_made_again_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("tmrl_like.envs.supervision._FIRST_BACKOFF_S", 0.0)
    assert run(tmp_path, partial(CountingEnv, raise_at=15)).total_updates == 40
    assert rounds_in(tmp_path)[-1]["env_faults_total"] > 0


def test_samples_that_cannot_be_learnt_from_end_it(tmp_path, monkeypatch):
    monkeypatch.setattr(CountingEnv, "_obs", lambda self: np.full(2, 1e30, np.float32))
    with pytest.raises(MemoryContractError, match=r"obs holds 1\.0.* not finite"):
        run(tmp_path)


def test_ctrl_c_ends_it_with_a_checkpoint_from_which_it_goes_on(tmp_path, signals_stay):
    class Interrupted(Seeds):
        def step(self, action):
            if self.total_steps == 30:
                signal.raise_signal(signal.SIGINT)
            return super().step(action)

    # SIGINT is ignored if tests run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stopped = run(tmp_path, Interrupted, checkpoint=tmp_path / "checkpoint")
    assert 10 < stopped.total_updates < 40
    resumed = run(tmp_path, checkpoint=tmp_path / "checkpoint")
    assert (resumed.epoch, resumed.round) == (1, 0)
    assert resumed.total_updates >= 40
    assert resumed.total_samples > stopped.total_samples


def test_an_environment_in_real_time_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Seeds, "time_step_s", 0.05)
    with pytest.raises(ConfigError, match="runs in real time"):
        run(tmp_path)


def test_an_experiment_runs_in_process(command_line, capsys, tmp_path):
    assert (
        command_line("run", str(TINY), "--in-process", "--trainer.rounds", "1", "--seed", "1") == 0
    )
    assert "policy" in capsys.readouterr().err
    assert command_line("run", str(TINY), "--in-process", "--workers", "2") == 2
    assert "--in-process goes with none" in capsys.readouterr().err
