"""The schedule, and what training does with samples that do not fit the memory; without a
network.
"""

import contextlib
import copy
import importlib.machinery
import itertools
import math
import pickle
import re
import sys
import threading
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from house import linear_actor
from kit.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from kit.trainings import (
    FREE,
    Hears,
    HoldingBack,
    Network,
    OfOneShape,
    Standing,
    Ticking,
    coming,
    delivery,
    feed,
    message,
    resumed,
    taken,
    train_until_idle,
    training,
)

from tmrl_like.base.functional import partial
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import (
    ConfigError,
    EnvironmentFaultError,
    FinishedError,
    MemoryContractError,
)
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.trainer.options import Schedule
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Buffer, Info, Receipt, Sample

# -- what does not fit -----------------------------------------------------------------------------


def test_a_worker_whose_samples_do_not_fit_is_refused_and_the_others_are_stored():
    to = training(OfOneShape)
    network = Network(delivery("a", 1), delivery("b", 1, 3), delivery("b", 2), delivery("a", 2))
    record = feed(to, network)
    assert network.confirmed == [("a", 1), ("a", 2)]
    ((receipt, reason),) = network.refused
    assert receipt == Receipt("b", 1, 1)
    assert "obs has the shapes" in reason
    assert record["env_steps_total"] == to.total_samples == 6
    assert record["episodes_train"] == 2


def test_a_worker_is_never_refused_for_the_samples_of_another():
    few = partial(delivery, entry=1, resets=False)  # the memory may hold them back
    to, others = training(HoldingBack, **FREE), [few(f"w{k}", n=63) for k in range(70)]
    network = Network(few("first", n=10), few("misfit", n=20, length=3), *others)
    feed(to, network)
    assert network.refused == []
    assert {worker for worker, _ in network.confirmed} == {
        "first",
        "misfit",
        *(f"w{k}" for k in range(70)),
    }
    # what was dropped is no past of what follows
    for worker in ("misfit", "first"):
        to.memory.append(few(worker, n=64).buffer)


class Broken(OfOneShape):
    error = ValueError


@pytest.mark.parametrize(
    ("memory_cls", "lengths", "error"),
    [
        # the samples do not fit the memory's arguments
        (partial(ReplayMemory, frame_stack={"camera": 4}), [2], MemoryContractError),
        (OfOneShape, [3], MemoryContractError),
        (Broken, [2, 3], ValueError),
    ],
)
def test_the_first_samples_that_do_not_fit_and_any_other_error_of_the_memory_end_training(
    memory_cls, lengths, error
):
    network = Network(*(delivery("a", entry, length) for entry, length in enumerate(lengths)))
    with pytest.raises(error, match=r"obs has the shapes|frame_stack says"):
        feed(training(memory_cls), network)


# -- when it trains, and when it waits -------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path):
    """A factory of trainings on a data set of six samples, which make five transitions."""
    write_data_set(
        tmp_path / "recorded", [delivery("a", entry, resets=False).buffer for entry in (1, 2)]
    )
    return partial(training, partial(ListMemory, dataset_path=tmp_path / "recorded"))


@pytest.mark.parametrize(
    ("packets", "fetched_every", "steps"),
    [
        (0, 100, 20),  # without a worker it trains to the end
        (1, 10, 10 + 3),  # a late worker's samples are not held up by earlier training
        (1, 1, 5 + 3),  # if a worker comes early, the data set counts as environment steps
    ],
)
def test_a_data_set_holds_up_no_training_and_counts_where_workers_come_early(
    recorded, packets, fetched_every, steps
):
    to = recorded(update_buffer_interval=fetched_every)
    train_until_idle(to, Network(*[delivery("b", 1)] * packets))
    assert (to.total_updates, to.total_samples) == (steps, 5 + 3 * packets)


def test_no_step_goes_above_the_ratio_and_the_last_one_of_a_round_waits_for_nothing():
    ahead = []

    class Agent(CountingAgent):
        def train(self, batch):
            ahead.append(to.total_updates + 1 - to.total_samples)
            return super().train(batch)

    to = training(ReplayMemory, agent_cls=Agent, steps=4, max_training_steps_per_env_step=1.0)
    network = coming("a", (1, 2, 3))
    train_until_idle(to, network)
    assert not network.is_idle
    assert ahead == [-2, -1, 0, -2, -1, 0, -2, -1]


def scheduled(**options):
    """Return a training with four rounds of five steps."""
    return training(cls=Ticking, **{"rounds": 4, "steps": 5} | FREE | options)


def test_a_wait_for_samples_says_who_is_missing_at_growing_intervals(caplog):
    one = scheduled()
    one.run_epoch(Network(), should_stop=lambda: one.now > 2500.0)
    waited_s = [record.args[0] for record in caplog.records if "nobody has come" in record.message]
    intervals_s = [round(b - a, -1) for a, b in itertools.pairwise([0.0, *waited_s])]
    assert intervals_s == [10, 20, 40, 80, 160, 320, 600, 600, 600]


def test_a_wait_begins_again_with_each_sample_and_shows_how_far_the_warm_up_has_come(caplog):
    one, heard = scheduled(start_training=10_000), Hears()
    one.run_epoch(coming("w", range(100)), [heard], should_stop=lambda: one.now > 100.0)
    assert one.total_samples > 10
    assert not caplog.records
    counted = [record["env_steps_total"] for record in heard.records if record["kind"] == "warm_up"]
    assert len(counted) > 10
    assert counted == sorted(set(counted))


class Barren(ListMemory):
    """A user's memory whose `__len__` is wrong."""

    def __len__(self):
        return 0


@pytest.mark.parametrize(
    "memory", [Barren, partial(ReplayMemory, memory_size=1)], ids=["its len", "its size"]
)
def test_a_memory_that_makes_nothing_of_its_samples_is_named_while_they_come(caplog, memory):
    one = training(memory, cls=Ticking, **FREE)
    one.run_epoch(coming("w", range(100)), should_stop=lambda: one.now > 100.0)
    said = [bool(re.search("to train on for.*makes 0 transit", line)) for line in caplog.messages]
    assert said == [True] * 3


def rounds_of(one, stop_after_updates=1e9):
    records = one.run_epoch(
        Network(delivery("w", 1)), should_stop=lambda: one.total_updates >= stop_after_updates
    )
    return [(record["epoch"], record["round"]) for record in records]


def test_a_training_that_was_stopped_goes_on_where_it_was_in_its_round_and_with_its_clock(tmp_path):
    one = scheduled()
    assert rounds_of(one, stop_after_updates=12) == [(0, 0), (0, 1), (0, 2)]
    elapsed_s = one.elapsed_s
    two = resumed(one, scheduled(), tmp_path)
    assert elapsed_s <= two.elapsed_s < elapsed_s + 10.0
    assert rounds_of(two) == [(0, 2), (0, 3)]
    assert two.total_updates == 20
    assert rounds_of(two) == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_the_minutes_of_a_run_are_those_of_all_its_sessions(tmp_path):
    one = scheduled(max_minutes=1.0)
    assert not one.is_over()
    one.now += 61.0
    assert one.is_over()
    assert resumed(one, scheduled(max_minutes=1.0), tmp_path).is_over()


@pytest.mark.parametrize("size", [1, 8, 40])
def test_in_lockstep_the_steps_before_the_start_allow_no_training_however_packets_divide_them(size):
    receiver = Receiver()
    packets = [message(number, n=size, awaits=True) for number in range(1, 40 // size + 1)]
    network = Network(*(one for data in packets for one in taken(receiver, data)), one_by_one=True)
    one = scheduled(max_training_steps_per_env_step=1.0, start_training=20)
    train_until_idle(one, network)
    assert (one.total_samples, one.total_updates) == (40, 20)


def test_a_run_that_was_in_lockstep_may_go_on_without_a_limit(tmp_path):
    one = scheduled(max_training_steps_per_env_step=1.0)
    train_until_idle(one, Network(replace(delivery("a", 1), awaits=True)))
    assert one.pacer.in_lockstep
    limitless = {"max_training_steps_per_env_step": math.inf, "update_buffer_interval": 1}
    two = resumed(one, scheduled(**limitless), tmp_path)
    rounds_of(two)
    assert (two.epoch, two.total_updates) == (1, 20)
    with pytest.raises(ConfigError, match="a worker gathers in lockstep"):
        two.run_epoch(Network(replace(delivery("a", 2), awaits=True)))


def test_a_round_that_time_ends_exactly_at_its_end_is_not_done_again():
    one = scheduled()
    rounds_of(one, stop_after_updates=20)
    assert (one.epoch, one.round) == (1, 0)


# -- what it calls, and what it says ---------------------------------------------------------------


@pytest.mark.parametrize(("training_steps", "starts_well"), [(0, False), (900, True)])
def test_a_return_need_not_rise_that_was_trained_for_before_the_first_sample(
    training_steps, starts_well
):
    to = training()
    for to.total_updates in (training_steps, 10_000):
        feed(to, Network(delivery("a", to.total_updates)))
        assert to.diagnosis.returns.starts_well == starts_well


def test_the_agent_scheduler_is_called_with_the_agent_at_the_start_of_each_epoch():
    calls = []
    to = training(
        rounds=1,
        **FREE,
        agent_scheduler=lambda agent, epoch: calls.append((agent, epoch, agent.steps)),
    )
    for _ in range(2):
        to.run_epoch(Network(delivery("a", 1)))
    assert calls == [(to.agent, 0, 0), (to.agent, 1, 10)]


def test_profiling_shows_what_each_round_did(monkeypatch, caplog):
    @contextlib.contextmanager
    def profiler():
        profile, before = MagicMock(), to.total_updates
        yield profile
        profile.output_text.return_value = f"a profile of {to.total_updates - before} steps"

    spec = importlib.machinery.ModuleSpec("pyinstrument", None)
    stand_in = MagicMock(Profiler=profiler, __spec__=spec)
    monkeypatch.setitem(sys.modules, "pyinstrument", stand_in)
    caplog.set_level("INFO")
    to = training(steps=1, **FREE, profiling=True)
    to.run_epoch(Network(delivery("a", 1)))
    assert caplog.text.count("a profile of 1 steps") == 2


class Stepping(TrainingOffline):
    """A training whose steps take a second."""

    def clock(self):
        return float(self.total_updates)


@pytest.mark.parametrize(
    ("seconds", "published"),
    [(0.0, [*range(2, 21, 2), 20, *range(22, 41, 2), 40]), (5.0, [6, 12, 18, 20, 26, 32, 38, 40])],
)
def test_policies_are_published_after_each_epoch_and_when_steps_and_seconds_have_passed(
    seconds, published
):
    to = training(cls=Stepping, **FREE, update_model_interval=2, update_model_interval_s=seconds)
    network = Network(delivery("w", 1))
    for _ in range(2):
        to.run_epoch(network)
        to.publish(network)
    assert network.published == published


def test_rounds_that_follow_each_other_too_soon_share_their_metrics():
    one = scheduled(metrics_interval_s=1e6)
    (record,) = one.run_epoch(Network(delivery("w", 1)))
    assert (record["round"], record["training_steps_total"], one.epoch) == (0, 20, 1)


@pytest.mark.parametrize(
    ("returned", "line"),
    [
        (None, "Agent.train returned None; expected a dict of metrics"),
        ({"loss": np.zeros(2)}, "the metric loss that the agent returns is no number: "),
        ({"epoch": 1.0}, "the agent returns a metric epoch, which is the trainer's own: rename it"),
        ({"time_s": 1.0}, "the agent returns a metric time_s, which is the trainer's own"),
    ],
)
def test_an_agent_that_returns_no_metrics_is_one_line(returned, line):
    class Agent(CountingAgent):
        def train(self, batch):
            super().train(batch)
            return returned

    with pytest.raises(ConfigError, match=line):
        training(agent_cls=Agent, **FREE).run_epoch(Network(delivery("a", 1)))


@pytest.mark.parametrize("returned", [None, LinearActor])
def test_an_agent_without_an_actor_is_one_line(returned):
    class Agent(CountingAgent):
        def get_actor(self):
            return returned

    with pytest.raises(ConfigError, match=r"Agent\.get_actor returned .*; expected an instance of"):
        training(agent_cls=Agent)


def test_an_agent_that_publishes_copies_is_told_to_say_how_it_starts_from_a_policy():
    class Copying(CountingAgent):
        def get_actor(self):
            return copy.deepcopy(self.actor)

    with pytest.raises(ConfigError, match=r"Copying\.get_actor returns a copy, so that no policy"):
        training(agent_cls=Copying).start_from(linear_actor(bias=1.0).weights(), 0)


class Scored(CountingAgent):
    """An agent whose loss is the mean reward; training and evaluation draw random numbers."""

    def train(self, batch):
        super().train(batch)
        return self.evaluate(batch)

    def evaluate(self, batch):
        return {"loss": batch.rew.mean() + 0.0 * torch.rand(())}


@pytest.mark.parametrize("share", [0.05, 0.0])
def test_what_is_held_out_shows_in_the_rounds_and_changes_nothing_of_training(share, tmp_path):
    """There are twelve episodes of nine transitions. Only the tenth, which is held out, has
    rewards.
    """
    zeros = np.zeros(1, np.float32), np.zeros(2, np.float32)
    rows = [
        Sample(*zeros, float(k // 10 == 9), False, False, Info(is_reset=k % 10 == 0))
        for k in range(120)
    ]
    write_data_set(tmp_path, [Buffer(rows, "w")])
    memory_cls = partial(ReplayMemory, dataset_path=tmp_path)
    to = training(memory_cls, agent_cls=Scored, batch_size=64, held_out_share=share, steps=30)
    torch.manual_seed(0)
    records = to.run_epoch(Network())
    drawn = torch.rand(())
    torch.manual_seed(0)
    assert torch.rand(61)[-1] == drawn
    assert [record.get("loss_held_out") for record in records] == [1.0 if share else None] * 2
    assert [record["loss"] == 0.0 for record in records] == [share > 0] * 2


# -- how it is made --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "has_cuda", "expected"),
    [(None, True, "cuda"), (None, False, "cpu"), ("cpu", True, "cpu")],
)
def test_memory_and_agent_get_the_schedules_device_and_length_and_the_environment_is_closed(
    device, has_cuda, expected, monkeypatch
):
    called = []

    class Env(CountingEnv):
        def close(self):
            called.append("close")

    class Agent(CountingAgent):
        def __init__(self, observation_space, action_space, device):
            super().__init__(observation_space, action_space, "cpu")
            called.append(device)

    monkeypatch.setattr("torch.cuda.is_available", lambda: has_cuda)
    to = TrainingOffline(Env, ListMemory, Agent, device=device, steps=7)
    assert called == ["close", expected]
    assert (to.device, to.memory.device, to.memory.nb_steps) == (expected, expected, 7)
    assert to.agent.observation_space == CountingEnv().observation_space


def test_spaces_may_be_given_instead_of_an_environment():
    env = CountingEnv()
    pair = (env.observation_space, env.action_space)
    assert TrainingOffline(pair, ListMemory, CountingAgent).action_space is env.action_space


class Lost(CountingEnv):
    def close(self):
        raise RuntimeError("the window is gone")


def test_an_environment_whose_spaces_cannot_be_read_is_one_line():
    with pytest.raises(EnvironmentFaultError, match="to read its spaces: RuntimeError: the window"):
        TrainingOffline(Lost, ListMemory, CountingAgent)


class WithGamma(CountingAgent):
    gamma = 0.9


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"memory_cls": None}, "TrainingOffline needs memory_cls"),
        ({"memory_cls": ReplayMemory()}, "memory_cls is an instance of ReplayMemory; expected"),
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"env_cls": (1, 2, 3)}, "env_cls as a tuple is .* it has 3 items"),
        (
            {"memory_cls": partial(ReplayMemory, gamma=0.5)},
            "gamma is 0.5 in the memory and 0.9 in the agent",
        ),
        (
            {
                "memory_cls": partial(
                    ReplayMemory, mini_races=5.0, time_step_duration=1.0, gamma=0.9
                )
            },
            "the memory draws mini-races, but WithGamma does not take the time",
        ),
    ],
)
def test_fields_that_cannot_be_are_named(fields, told):
    usual = {"env_cls": CountingEnv, "memory_cls": ReplayMemory, "training_agent_cls": WithGamma}
    with pytest.raises(ConfigError, match=told):
        TrainingOffline(**usual | fields)


@pytest.mark.parametrize("memory_cls", [ListMemory, ReplayMemory])
def test_a_pickled_training_goes_on_where_it_was_on_a_machine_that_was_just_started(
    monkeypatch, memory_cls
):
    """Users of the prototype pickle trainings."""
    set_clock = partial(monkeypatch.setattr, Standing, "now")
    set_clock(1e6)
    intervals = {"update_model_interval": 1, "update_model_interval_s": 1.0}
    one = training(memory_cls, cls=Standing, steps=1, **intervals, **FREE)
    one.run_epoch(Network(delivery("a", 1)), should_stop=threading.Event().is_set)
    set_clock(1e6 + 600.0)
    one.tune({"trainer.rounds": 9})  # asked by a thread of this process, which waits for it
    data, network = pickle.dumps(one), Network(delivery("a", 2))
    set_clock(10.0)
    again = pickle.loads(data)  # noqa: S301
    assert (again.epoch, again.total_updates, again.total_samples) == (1, 2, 3)
    assert again.elapsed_s == 600.0
    set_clock(11.0)
    again.run_epoch(network)
    assert (network.published, again.total_updates) == ([3.0], 4)


def test_a_training_that_has_done_its_minutes_is_told_what_to_raise(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(FinishedError, match=r"its 0.5 minutes: raise max_minutes \(--tr") as caught:
        Schedule(max_minutes=0.5).refuse_finished(2, 30.0)
    assert caught.value.code == caught.value.exit_code == 0  # torchrun starts again what fails
    Schedule(epochs=math.inf, max_minutes=1.0).refuse_finished(9, 59.0)
