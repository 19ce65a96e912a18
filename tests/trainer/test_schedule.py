"""The schedule, and what training does with a packet that does not fit the memory; without a network."""

import importlib.machinery
import itertools
import math
import pickle
import re
import sys
import types

import numpy as np
import pytest
import torch

from tmrl_like.base.functional import partial
from tmrl_like.errors import (
    ConfigError,
    FinishedError,
    MemoryContractError,
    MissingExtraError,
    PipelineMismatchError,
)
from tmrl_like.replay import MiniRaces, ReplayMemory
from tmrl_like.replay.data_sets import write_data_set
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.trainer.options import Schedule
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import load_checkpoint, take_snapshot
from tmrl_like.trainer.watch import Listener
from tmrl_like.types import Buffer, Delivery, EpisodeStats, Info, Receipt, Sample, StepTiming


class OfOneShape(ListMemory):
    """A user's memory that minds the shape of what it is given."""

    min_run = 1
    error = MemoryContractError

    def append_buffer(self, buffer):
        shapes = {sample.obs.shape for sample in (*self.data, *buffer)}
        if shapes != {(2,)}:
            raise self.error(f"obs has the shapes {shapes}")
        super().append_buffer(buffer)


class Hears(Listener):
    """Keeps all records."""

    def __init__(self):
        self.records = []

    def on_record(self, record):
        self.records.append(record)


class HearsAll(Hears):
    """Notes what it is told, in order, and adds to each round."""

    def __init__(self):
        super().__init__()
        self.told = []

    def on_samples(self, delivery):
        self.told.append(len(delivery.buffer))

    def on_step(self, batch, metrics):
        self.told.append("step")

    def on_round(self, record):
        record["steps_heard"] = self.told.count("step")


class Network:
    """Hands over what it is given, and notes what it is told."""

    def __init__(self, *deliveries):
        self.deliveries = list(deliveries)
        self.confirmed, self.refused, self.published = [], [], []

    def retrieve(self, timeout_s=0.0):
        deliveries, self.deliveries = self.deliveries, []
        return deliveries

    def confirm(self, deliveries):
        self.confirmed += [(delivery.receipt.worker, delivery.receipt.entry) for delivery in deliveries]

    def reject(self, receipt, reason):
        self.refused.append((receipt, reason))

    def broadcast_model(self, model):
        self.published.append(model.layer.bias.item())  # of a `CountingAgent`: its training steps
        return len(self.published)

    def fleet(self):
        return {}

    def who_is_missing(self):
        return "nobody has come"


def packet(worker, entry, length=2, session=1, resets=True):
    samples = [
        Sample(0, np.full(length, k, np.float32), 0.0, False, False, Info(is_reset=resets and k == 0)) for k in range(3)
    ]
    episode = EpisodeStats(worker, False, 1.0, 2, True, False, 0.0, 0)
    return Delivery(Buffer(samples, f"{worker}/{session}/1/0"), (episode,), Receipt(worker, session, entry))


FREE = {"max_training_steps_per_env_step": 1e9}


def training(memory_cls=ListMemory, cls=TrainingOffline, agent_cls=CountingAgent, **fields):
    return cls(CountingEnv, partial(memory_cls, batch_size=4), agent_cls, **{"rounds": 2, "steps": 10} | fields)


def feed(to, network):
    """Let training take what has come to a network; the record of the round."""
    looks = []
    retrieve = network.retrieve

    def retrieved(timeout_s=0.0):
        looks.append(timeout_s)
        return retrieve(timeout_s)

    network.retrieve = retrieved
    (record,) = to.run_epoch(network, should_stop=lambda: bool(looks))
    network.retrieve = retrieve
    return record


@pytest.mark.parametrize("memory_cls", [ReplayMemory, OfOneShape])
def test_a_worker_whose_samples_do_not_fit_is_refused_and_the_others_are_stored(memory_cls):
    to = training(memory_cls)
    network = Network(packet("a", 1), packet("b", 1, 3), packet("b", 2), packet("a", 2))
    record = feed(to, network)
    assert network.confirmed == [("a", 1), ("a", 2)]
    ((receipt, reason),) = network.refused
    assert receipt == Receipt("b", 1, 1)
    assert "obs" in reason
    assert record["env_steps_total"] == to.total_samples == 6
    assert record["episodes_train"] == 2
    network = Network(packet("b", 1, session=2))
    feed(to, network)
    assert network.confirmed == [("b", 1)]


@pytest.mark.parametrize("ahead_s", [-3600.0, 3600.0])
def test_ages_are_right_of_samples_whose_worker_has_another_clock(ahead_s, monkeypatch):
    now = [1e9]
    monkeypatch.setattr("tmrl_like.base.clocks.unix_s", lambda: now[0])
    timing = StepTiming(1e9 + ahead_s - 2.0, 0.0, 0.0, policy_version=3)
    buffer = packed(ActionBufferEnv(1).take(3), "a/1/1/0", timing=timing)
    network = Network(Delivery(buffer, (), Receipt("a", 1, 1), ahead_s=ahead_s))
    network.fleet = lambda: now.append(now.pop() + 10.0) or {}  # the round is closed later
    to = training(ListMemory)
    for published_s in (1e9 - 9.0, 1e9 - 8.0, 1e9 - 7.0, 1e9 - 6.0):
        now[0] = published_s
        to.publish(network)
    now[0] = 1e9
    record = feed(to, network)
    assert (record["sample_age_p50_s"], record["policy_age_p50_s"]) == (2.0, 5.0)
    assert record["policy_staleness_p50_versions"] == 1.0


class HasSamples(Alone):
    """Says that another rank has got three samples, and ends training."""

    def vote(self, mine, may_be_late=False):
        return mine._replace(stop=True, samples=3), mine


@pytest.mark.parametrize("heard_of", ["here", "another rank"])
@pytest.mark.parametrize(("training_steps", "starts_well"), [(0, False), (900, True)])
def test_a_return_need_not_rise_that_was_trained_for_before_the_first_sample(heard_of, training_steps, starts_well):
    to = training(ListMemory)
    to.total_updates = training_steps
    if heard_of == "here":
        feed(to, Network(packet("a", 1)))
    else:
        to.join(HasSamples())
        to.run_epoch(Network())
        to.join(Alone())
    assert to.total_samples == 3
    assert to.diagnosis.returns.starts_well == starts_well
    to.total_updates += 10_000
    feed(to, Network(packet("a", 2)))
    assert to.diagnosis.returns.starts_well == starts_well


def test_the_first_samples_that_do_not_fit_the_memorys_own_arguments_end_training():
    to = training(partial(ReplayMemory, frame_stack={"camera": 4}))
    with pytest.raises(MemoryContractError, match="frame_stack says"):
        feed(to, Network(packet("a", 1)))
    with pytest.raises(MemoryContractError, match="shapes"):
        feed(training(OfOneShape), Network(packet("a", 1, 3)))


@pytest.mark.parametrize("error", [PipelineMismatchError, ValueError])
def test_another_error_of_the_memory_ends_training(error, monkeypatch):
    to = training(OfOneShape)
    feed(to, Network(packet("a", 1)))
    monkeypatch.setattr(OfOneShape, "error", error)
    with pytest.raises(error):
        feed(to, Network(packet("a", 2, 3)))


class StopsWhereItWaits(Network):
    """Ends training where it would wait for samples that do not come."""

    is_stopped = False

    def train(self, to):
        return to.run_epoch(self, should_stop=lambda: self.is_stopped)

    def retrieve(self, timeout_s=0.0):
        self.is_stopped = timeout_s > 0 and not self.deliveries
        return super().retrieve(timeout_s)


@pytest.fixture
def recorded(tmp_path):
    """A data set of six samples."""
    write_data_set(tmp_path / "recorded", [packet("a", entry, resets=False).buffer for entry in (1, 2)])
    return tmp_path / "recorded"


def test_training_from_a_recorded_memory_alone_runs_to_its_end(recorded):
    to = training(partial(ListMemory, dataset_path=recorded))
    StopsWhereItWaits().train(to)
    assert to.total_updates == 20


def test_what_a_data_set_was_trained_for_does_not_hold_up_training_with_workers(recorded):
    """The first worker comes after 10 of 20 steps; its 3 samples allow 3 more."""
    to = training(partial(ListMemory, dataset_path=recorded), update_buffer_interval=10)
    StopsWhereItWaits(packet("b", 1)).train(to)
    assert (to.total_updates, to.total_samples) == (13, 5 + 3)


def test_a_data_set_counts_as_environment_steps_where_workers_come_early(recorded):
    to = training(partial(ListMemory, dataset_path=recorded), update_buffer_interval=1)
    StopsWhereItWaits(packet("b", 1)).train(to)
    assert to.total_updates == to.total_samples == 5 + 3


def test_training_that_was_resumed_is_as_far_ahead_of_the_workers_as_before(recorded, tmp_path):
    one = training(partial(ListMemory, dataset_path=recorded), update_buffer_interval=10)
    StopsWhereItWaits(packet("b", 1)).train(one)
    take_snapshot(one).write(tmp_path / "c")
    two = training(partial(ListMemory, dataset_path=recorded), update_buffer_interval=10)
    load_checkpoint(two, tmp_path / "c")
    StopsWhereItWaits(packet("b", 2, resets=False)).train(two)
    assert two.total_updates == 13 + 3


def test_the_first_step_waits_until_the_memory_is_ready():
    """Two resets in a row are two samples, and no transition."""
    to = training(max_training_steps_per_env_step=100.0)
    resets = [Sample(0, np.zeros(2, np.float32), 0.0, False, False, Info(is_reset=True))] * 2
    StopsWhereItWaits(Delivery(Buffer(resets, "a/1/1/0"), (), Receipt("a", 1, 1))).train(to)
    assert (to.total_samples, to.total_updates) == (2, 0)


def test_samples_are_fetched_every_update_buffer_interval_steps():
    to = training(rounds=1, max_training_steps_per_env_step=100.0, update_buffer_interval=4)
    network, fetched_at = Network(packet("a", 1)), []
    retrieve = network.retrieve

    def noted(timeout_s=0.0):
        fetched_at.append(to.total_updates)
        return retrieve(timeout_s)

    network.retrieve = noted
    to.run_epoch(network)
    assert fetched_at == [0, 4, 8]


def test_the_agent_scheduler_is_called_with_the_agent_at_the_start_of_each_epoch():
    calls = []
    to = training(
        rounds=1,
        max_training_steps_per_env_step=100.0,
        agent_scheduler=lambda agent, epoch: calls.append((agent, epoch, agent.steps)),
    )
    network = Network(packet("a", 1))
    to.run_epoch(network)
    to.run_epoch(network)
    assert calls == [(to.agent, 0, 0), (to.agent, 1, 10)]


@pytest.mark.parametrize("profiling", [False, True])
def test_profiling_shows_what_each_round_did(profiling, monkeypatch, caplog):
    class Profiler:
        def __enter__(self):
            self.before = to.total_updates
            return self

        def __exit__(self, *error):
            self.steps = to.total_updates - self.before

        def output_text(self, **options):
            return f"a profile of {self.steps} steps"

    stand_in = types.ModuleType("pyinstrument")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("pyinstrument", None)
    stand_in.Profiler = Profiler
    monkeypatch.setitem(sys.modules, "pyinstrument", stand_in)
    caplog.set_level("INFO")
    to = training(steps=1, **FREE, profiling=profiling)
    to.run_epoch(Network(packet("a", 1)))
    assert caplog.text.count("a profile of 1 steps") == (2 if profiling else 0)


@pytest.mark.parametrize(
    ("device", "has_cuda", "expected"), [(None, True, "cuda"), (None, False, "cpu"), ("cpu", True, "cpu")]
)
def test_without_a_device_cuda_is_taken_where_there_is_one(device, has_cuda, expected, monkeypatch):
    devices = []

    class Agent(CountingAgent):
        def __init__(self, observation_space, action_space, device):
            super().__init__(observation_space, action_space, "cpu")
            devices.append(device)

    monkeypatch.setattr("torch.cuda.is_available", lambda: has_cuda)
    to = TrainingOffline(CountingEnv, ListMemory, Agent, device=device)
    assert [to.device, to.memory.device, *devices] == [expected] * 3


def test_a_profiler_that_is_not_installed_is_missed_at_construction(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyinstrument", None)
    with pytest.raises(MissingExtraError, match="profiling=True needs pyinstrument: pip install pyinstrument"):
        TrainingOffline(CountingEnv, ListMemory, CountingAgent, profiling=True)


def test_listeners_hear_of_samples_steps_and_records_and_add_to_rounds():
    heard = HearsAll()
    records = training(steps=1, **FREE).run_epoch(Network(packet("a", 1)), [heard])
    assert heard.told == [3, "step", "step"]
    assert [record["steps_heard"] for record in records] == [1, 2]
    assert [record["kind"] for record in heard.records] == ["episode", "round", "round"]
    assert heard.records[1] == {"kind": "round", "time_s": heard.records[1]["time_s"], **records[0]}


def test_a_training_can_be_pickled_as_users_of_the_prototype_do():
    to = training(steps=1, **FREE, device="cpu")
    to.run_epoch(Network(packet("a", 1)))
    again = pickle.loads(pickle.dumps(to))  # noqa: S301
    assert (again.total_updates, again.total_samples, again.agent.steps, again.epoch) == (2, 3, 2, 1)
    again.run_epoch(Network(packet("a", 2)))
    assert again.total_updates == 4


class Clocked(TrainingOffline):
    """Each look at the clock takes a second."""

    now = 0.0

    def clock(self):
        self.now += 1.0
        return self.now


def scheduled(**options):
    return training(cls=Clocked, **{"rounds": 4, "steps": 5} | FREE | options)


def rounds_of(one, stop_after_updates=1e9):
    records = one.run_epoch(Network(packet("w", 1)), should_stop=lambda: one.total_updates >= stop_after_updates)
    return [(record["epoch"], record["round"]) for record in records]


def test_a_training_that_was_stopped_goes_on_where_it_was_in_its_round_and_with_its_clock(tmp_path):
    one = scheduled()
    assert rounds_of(one, stop_after_updates=12) == [(0, 0), (0, 1), (0, 2)]
    take_snapshot(one).write(tmp_path)
    elapsed_s = one.elapsed_s
    two = scheduled()
    load_checkpoint(two, tmp_path)
    assert elapsed_s <= two.elapsed_s < elapsed_s + 10.0
    assert rounds_of(two) == [(0, 2), (0, 3)]
    assert two.total_updates == 20
    assert rounds_of(two) == [(1, 0), (1, 1), (1, 2), (1, 3)]


def test_the_minutes_of_a_run_are_those_of_all_its_sessions(tmp_path):
    one = scheduled(max_minutes=1.0)
    one.now += 61.0
    assert one.is_over()
    take_snapshot(one).write(tmp_path)
    two = scheduled(max_minutes=1.0)
    load_checkpoint(two, tmp_path)
    assert two.is_over()


def test_a_round_that_time_ends_exactly_at_its_end_is_not_done_again():
    one = scheduled()
    rounds_of(one, stop_after_updates=20)
    assert (one.epoch, one.round) == (1, 0)


def test_a_wait_for_samples_says_who_is_missing_at_growing_intervals(caplog):
    one = scheduled()
    one.run_epoch(Network(), should_stop=lambda: one.now > 100.0)
    waited_s = [record.args[0] for record in caplog.records if "nobody has come" in record.message]
    assert [round(b - a, -1) for a, b in itertools.pairwise([0.0, *waited_s])] == [10, 20, 40]


def test_a_wait_begins_again_with_each_sample(caplog):
    class Trickle(Network):
        def retrieve(self, timeout_s=0.0):
            return [packet("w", int(one.now))]

    one = scheduled(start_training=10_000)
    heard = Hears()
    one.run_epoch(Trickle(), [heard], should_stop=lambda: one.now > 100.0)
    assert one.total_samples > 10
    assert not caplog.records
    counted = [record["env_steps_total"] for record in heard.records if record["kind"] == "warm_up"]
    assert len(counted) > 10
    assert counted == sorted(set(counted))


class Finite(Network):
    """Hands over one packet at a time; nobody may wait for more when there are none left."""

    def retrieve(self, timeout_s=0.0):
        assert self.deliveries, "waits for samples that do not come"
        return [self.deliveries.pop(0)]


def test_no_step_goes_above_the_ratio_and_the_last_one_of_a_round_waits_for_nothing():
    ahead = []

    class Agent(CountingAgent):
        def train(self, batch):
            ahead.append(to.total_updates + 1 - to.total_samples)
            return super().train(batch)

    to = training(ReplayMemory, agent_cls=Agent, steps=4, max_training_steps_per_env_step=1.0)
    to.run_epoch(Finite(*(packet("a", number) for number in (1, 2, 3))))
    assert ahead == [-2, -1, 0, -2, -1, 0, -2, -1]


class WithGamma(CountingAgent):
    gamma = 0.9


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"env_cls": None}, "TrainingOffline needs env_cls"),
        ({"memory_cls": None}, "TrainingOffline needs memory_cls"),
        ({"rounds": 0}, "rounds is 0; expected 1 or more"),
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"update_buffer_interval": 0}, "update_buffer_interval is 0; expected 1 or more"),
        ({"max_training_steps_per_env_step": 0}, "_per_env_step is 0; expected more than 0"),
        ({"max_training_steps_per_env_step": "fast"}, "_per_env_step is 'fast'; expected a number, more than 0"),
        ({"env_cls": (1, 2, 3)}, "env_cls as a tuple is .* it has 3 items"),
        ({"memory_cls": partial(ReplayMemory, gamma=0.5)}, "gamma is 0.5 in the memory and 0.9 in the agent"),
    ],
)
def test_fields_that_cannot_be_are_named(fields, told):
    usual = {"env_cls": CountingEnv, "memory_cls": ReplayMemory, "training_agent_cls": WithGamma}
    with pytest.raises(ConfigError, match=told):
        TrainingOffline(**usual | fields)


def test_memory_and_agent_get_the_schedules_device_and_length_and_the_environment_is_closed():
    closed = []

    class Env(CountingEnv):
        def close(self):
            closed.append(True)

    to = TrainingOffline(Env, ReplayMemory, CountingAgent, steps=7, device="meta")
    assert (to.memory.device, to.agent.device) == ("meta", "meta")
    assert to.memory.nb_steps == 7
    assert closed == [True]
    assert to.agent.observation_space == CountingEnv().observation_space


def test_spaces_may_be_given_instead_of_an_environment():
    env = CountingEnv()
    pair = (env.observation_space, env.action_space)
    assert TrainingOffline(pair, ListMemory, CountingAgent).action_space is env.action_space


def test_an_agent_that_does_not_take_the_time_that_is_left_is_refused_by_mini_races():
    class Agent(CountingAgent):
        takes_time_left = True

    memory_cls = partial(ReplayMemory, mini_races=MiniRaces(steps=5), gamma=1.0)
    with pytest.raises(ConfigError, match="the memory draws mini-races, but CountingAgent does not take the time"):
        training(memory_cls)
    to = training(memory_cls, agent_cls=Agent)
    feed(to, Network(packet("a", 1)))
    assert to.memory.sample().time_left is not None


class Scored(CountingAgent):
    """Its loss is the mean reward; evaluating draws random numbers, too."""

    def train(self, batch):
        super().train(batch)
        return {"loss": batch.rew.mean() + 0.0 * torch.rand(())}

    def evaluate(self, batch):
        torch.rand(5)
        return {"loss": batch.rew.mean()}


@pytest.mark.parametrize("share", [0.05, 0.0])
def test_what_is_held_out_shows_in_the_rounds_and_changes_nothing_of_training(share, tmp_path):
    zeros = np.zeros(1, np.float32), np.zeros(2, np.float32)
    rows = [Sample(*zeros, float(k // 10 == 9), False, False, Info(is_reset=k % 10 == 0)) for k in range(120)]
    write_data_set(tmp_path, [Buffer(rows, "w")])
    memory_cls = partial(ReplayMemory, batch_size=64, dataset_path=tmp_path)
    to = TrainingOffline(CountingEnv, memory_cls, Scored, held_out_share=share, epochs=1, rounds=2, steps=30)
    torch.manual_seed(0)
    records = to.run_epoch(Network())
    drawn = torch.rand(())
    torch.manual_seed(0)
    assert [torch.rand(()) for _ in range(61)][-1] == drawn
    assert len(to.memory) == (11 * 9 if share else 12 * 9)
    assert [record.get("loss_held_out") for record in records] == [1.0 if share else None] * 2
    assert [record["loss"] == 0.0 for record in records] == [share > 0] * 2


class Stepping(TrainingOffline):
    """A training step takes a second."""

    def clock(self):
        return float(self.total_updates)


@pytest.mark.parametrize(("seconds", "published"), [(0.0, range(2, 21, 2)), (5.0, (6, 12, 18)), (2.0, range(2, 21, 2))])
def test_policies_are_published_when_steps_and_seconds_have_passed(seconds, published):
    limits = {"update_model_interval": 2, "update_model_interval_s": seconds}
    training(cls=Stepping, steps=10, **FREE, **limits).run_epoch(network := Network(packet("w", 1)))
    assert network.published == list(published)


def test_rounds_that_follow_each_other_too_soon_share_their_metrics():
    one = scheduled(metrics_interval_s=1e6)
    (record,) = one.run_epoch(Network(packet("w", 1)))
    assert (record["round"], record["training_steps_total"], one.epoch) == (0, 20, 1)
    assert len(scheduled().run_epoch(Network(packet("w", 1)))) == 4


@pytest.mark.parametrize(
    ("fields", "epoch", "elapsed_s", "line"),
    [
        ({"epochs": 2}, 2, 0.0, "this run has done its 2 epochs: raise epochs (--trainer.epochs)"),
        ({"max_minutes": 0.5}, 0, 30.0, "this run has done its 0.5 minutes: raise max_minutes (--trainer.max_minutes)"),
        ({"epochs": math.inf, "max_minutes": 1.0}, 9, 59.0, ""),
    ],
)
def test_a_training_that_has_done_all_is_told_so_with_what_to_raise(fields, epoch, elapsed_s, line):
    if line:
        with pytest.raises(FinishedError, match=re.escape(line)):
            Schedule(**fields).refuse_finished(epoch, elapsed_s)
    else:
        Schedule(**fields).refuse_finished(epoch, elapsed_s)
