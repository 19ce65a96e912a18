"""Hyper-parameters that change while training goes on: what is asked for, what checkpoints keep of it."""

from collections import deque

import numpy as np
import pytest
from in_threads import ThreadRanks
from test_schedule import Network, StopsWhereItWaits, packet
from test_together import run

from tmrl_like.base.functional import partial
from tmrl_like.errors import ConfigError, expect
from tmrl_like.replay import ReplayMemory, WithDemonstrations
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import load_checkpoint, take_snapshot

FREE = {"steps": 10, "rounds": 4, "max_training_steps_per_env_step": 1e9}


class TunedAgent(CountingAgent):
    tunable = ("lr", "gamma")

    def __init__(self, observation_space, action_space, device="cpu", lr=0.5, gamma=0.9):
        super().__init__(observation_space, action_space, device)
        self.lr, self.gamma = lr, gamma
        self.seen = deque()  # no part of a checkpoint

    def train(self, batch):
        self.seen.append((self.lr, len(batch.rew)))
        return super().train(batch)

    def tune(self, **values):
        expect(values.get("lr", 0.0) >= 0.0, "lr", values.get("lr"), "0 or more")
        super().tune(**values)

    def get_actor(self):
        self.seen.append(f"published at {self.lr:g}")
        return super().get_actor()


class SummingMemory(ListMemory):
    """A memory that knows the agent's discount."""

    tunable = ("batch_size", "gamma")

    def __init__(self, gamma, **options):
        super().__init__(**options)
        self.gamma = gamma


def training(memory_cls=ListMemory, memory=(), agent=(), **fields):
    to = TrainingOffline(
        CountingEnv,
        partial(memory_cls, **{"batch_size": 2} | dict(memory)),
        partial(TunedAgent, **dict(agent)),
        **FREE | fields,
    )
    to.network = Network(packet("a", 1))
    return to


def rates(to, round_=0):
    """Of the steps of a round."""
    return [seen[0] for seen in to.agent.seen if isinstance(seen, tuple)][10 * round_ : 10 * round_ + 10]


@pytest.fixture(autouse=True)
def on_record(caplog):
    caplog.set_level("INFO", "tmrl_like")


def test_what_is_asked_for_holds_from_the_next_round_on_with_a_line_and_a_metric(caplog):
    to = training()
    size = len(to.memory)

    def ask_once(agent, epoch):
        to.asked = to.tune({"agent.lr": 0.25, "memory.batch_size": 3, "trainer.steps": 5, "trainer.rounds": 2})

    to.agent_scheduler = ask_once
    to.run_epoch(to.network)
    assert to.asked.done()
    assert to.asked.result() is None
    assert [seen for seen in to.agent.seen if isinstance(seen, tuple)] == [(0.25, 3)] * 10
    assert "agent.lr changes: 0.5 -> 0.25" in caplog.text
    assert "memory.batch_size changes: 2 -> 3" in caplog.text
    assert len(to.memory) == size + 2  # of the packet
    (record,) = to.run_epoch(to.network)[-1:]
    assert (record["agent.lr"], record["memory.batch_size"], record["trainer.steps"]) == (0.25, 3, 5)
    assert "agent.gamma" not in record


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"agent.lr": -1.0}, "lr is -1; expected 0 or more"),
        ({"memory.batch_size": 0}, "batch_size is 0; expected a whole number, 1 or more"),
        ({"memory.batch_size": 2.5}, "batch_size is 2.5; expected a whole number, 1 or more"),
        ({"trainer.steps": 0}, "steps is 0; expected 1 or more"),
        ({"trainer.steps": 2.5}, "steps is 2.5; expected a whole number"),
        ({"memory.gamma": 0.5}, "gamma is 0.5 in the memory and 0.9 in the agent: give both the same"),
    ],
)
def test_what_cannot_be_changes_nothing_and_stops_nothing(values, problem):
    to = training(SummingMemory)
    asked = to.tune({"agent.gamma": 0.9, "agent.lr": 0.1, "trainer.rounds": 1} | values)
    to.run_epoch(to.network)
    assert rates(to, 3) == [0.5] * 10
    assert (to.memory.batch_size, to.rounds) == (2, 4)
    with pytest.raises(ConfigError, match=problem):
        asked.result()


def test_what_may_not_change_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"agent\.depth cannot change while training; .*agent\.lr.* can"):
        training().tune({"agent.depth": 3})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("agent.lr", None, "a number"),
        ("agent.lr", "fast", "a number"),
        ("trainer.sample_uses", "many", "a number"),
    ],
)
def test_what_is_no_such_number_is_refused_at_once(name, value, expected):
    with pytest.raises(ConfigError, match=f"{name} is .*; expected {expected}$"):
        training().tune({name: value})


def test_a_whole_number_may_be_written_as_a_fraction():
    to = training()
    to.tune({"memory.batch_size": 3.0, "trainer.steps": np.float64(5.0)})
    to.run_epoch(to.network)
    assert (type(to.memory.batch_size), type(to.steps), to.memory.batch_size, to.steps) == (int, int, 3, 5)


def test_potentials_that_were_not_kept_are_refused():
    to = training(ReplayMemory)
    asked = to.tune({"memory.shaping": 0.25})
    to.tuning.begin_round(to.ranks)
    with pytest.raises(ConfigError, match=r"shaping is 0\.25; expected none: the memory has kept no potentials"):
        asked.result()


def test_a_memory_that_is_made_of_another_has_that_one_s_values():
    inner = partial(ReplayMemory, n_steps=2, gamma=1.0, batch_size=4)
    memory_cls = partial(WithDemonstrations, memory=inner)
    to = TrainingOffline(CountingEnv, memory_cls, partial(TunedAgent, gamma=1.0), **FREE)
    assert to.tuning.given["memory.batch_size"] == 4
    to.tune({"agent.gamma": 0.5, "memory.batch_size": 9})
    to.tuning.begin_round(to.ranks)
    assert (to.memory.own.gamma, to.memory.demonstrations.gamma, to.memory.batch_size) == (0.5, 0.5, 9)


def test_the_agent_s_discount_is_the_memory_s():
    to = training(SummingMemory, agent={"gamma": 0.5})
    assert (to.memory.gamma, to.agent.gamma) == (0.5, 0.5)
    to.tune({"agent.gamma": 0.99})
    to.run_epoch(to.network)
    assert to.memory.gamma == to.agent.gamma == 0.99


def resumed(to, folder, **arguments):
    take_snapshot(to).write(folder)
    two = training(**arguments)
    load_checkpoint(two, folder)
    return two


def test_a_resumption_goes_on_with_what_was_changed(tmp_path, caplog):
    to = training()
    to.tune({"agent.lr": 0.25, "agent.gamma": 0.6, "trainer.steps": 5, "memory.batch_size": 3})
    to.run_epoch(to.network)
    caplog.clear()
    two = resumed(to, tmp_path)
    assert (two.agent.lr, two.steps, two.memory.nb_steps, two.memory.batch_size) == (0.25, 5, 5, 3)
    assert two.agent.gamma == 0.6
    assert "->" not in caplog.text


def test_a_resumption_that_is_given_another_value_goes_by_it_and_says_so(tmp_path, caplog):
    to = training(agent={"lr": 0.5})
    to.tune({"agent.lr": 0.25})
    to.run_epoch(to.network)
    two = resumed(to, tmp_path, agent={"lr": 0.125})
    assert two.agent.lr == 0.125
    assert "agent.lr changes with this resumption: 0.25 -> 0.125" in caplog.text


def test_what_a_file_says_meanwhile_is_what_a_resumption_compares_with(tmp_path, caplog):
    to = training(agent={"lr": 0.5})
    to.tuning.ask({"agent.lr": 0.25}, given=True)
    to.run_epoch(to.network)
    assert resumed(to, tmp_path / "a", agent={"lr": 0.25}).agent.lr == 0.25
    assert "resumption" not in caplog.text
    assert resumed(to, tmp_path / "b", agent={"lr": 0.5}).agent.lr == 0.5
    assert "agent.lr changes with this resumption: 0.25 -> 0.5" in caplog.text


@pytest.mark.parametrize(
    ("fields", "batch_size", "limit"),
    [
        ({"sample_uses": 4.0, "max_training_steps_per_env_step": 1.0}, 8, 0.5),
        ({"sample_uses": 4.0, "max_training_steps_per_env_step": 0.25}, 8, 0.25),
        ({"sample_uses": 4.0}, 2, 2.0),
        ({"sample_uses": None, "max_training_steps_per_env_step": 0.25}, 8, 0.25),
    ],
)
def test_the_lower_limit_of_ratio_and_uses_of_a_sample_holds(fields, batch_size, limit):
    to = training(memory={"batch_size": batch_size}, **fields)
    assert to.pacer.limit == limit
    assert not to.pacer.may_train(int(100 * limit), 100)
    assert to.pacer.may_train(int(100 * limit) - 1, 100)


def test_samples_that_are_held_out_are_not_to_be_used():
    assert training(ReplayMemory, sample_uses=4.0, held_out_share=0.25).pacer.limit == 1.5
    assert training(ListMemory, sample_uses=4.0, held_out_share=0.25).pacer.limit == 2.0  # which holds nothing out


@pytest.mark.parametrize(("batch_size", "uses", "steps"), [(4, 2.0, 6), (3, 3.0, 12), (12, 1.0, 1), (12, 0.5, 0)])
def test_each_sample_is_used_as_often_as_asked(batch_size, uses, steps):
    """Of 12 samples."""
    to = training(memory={"batch_size": batch_size}, sample_uses=uses)
    StopsWhereItWaits(*(packet("a", entry) for entry in range(1, 5))).train(to)
    assert (to.total_samples, to.total_updates) == (12, steps)


class OneByOne(Network):
    """A packet with each look."""

    def retrieve(self, timeout_s=0.0):
        return [self.deliveries.pop(0)] if self.deliveries else []


def test_ranks_change_the_same_at_the_same_step():
    networks = [OneByOne(*(packet("v", k) for k in range(1, 6))), OneByOne(packet("w", 1))]

    def asked(**fields):
        to = training(**fields)
        to.tune({"trainer.steps": 5, "agent.lr": 0.25})  # all ask, and rank 0 counts
        return to

    one, two = run(ThreadRanks.of(2), networks, asked, rounds=2, update_buffer_interval=5)
    assert one.steps == two.steps == 5
    assert one.total_updates == two.total_updates == 10
    assert [s for s in one.agent.seen if isinstance(s, tuple)] == [s for s in two.agent.seen if isinstance(s, tuple)]
    assert one.agent.lr == two.agent.lr == 0.25
