"""Hyper-parameters that change during training: which requests are accepted, and what checkpoints
keep.
"""

import math
from collections import deque
from types import NoneType

import pytest
from in_threads import ThreadRanks, epochs_of
from kit.fakes import CountingAgent, ListMemory
from kit.trainings import FREE, Network, coming, delivery, feed, resumed
from kit.trainings import training as plain

from tmrl_like.base.functional import partial
from tmrl_like.errors import ConfigError, expect
from tmrl_like.replay import ReplayMemory


class TunedAgent(CountingAgent):
    """An agent that records the learning rate and the batch size of each training step."""

    tunable = ("lr", "gamma")

    def __init__(self, observation_space, action_space, device="cpu", lr=0.5, gamma=0.9):
        super().__init__(observation_space, action_space, device)
        self.lr, self.gamma = lr, gamma
        self.seen = deque()  # not part of a checkpoint

    def train(self, batch):
        self.seen.append((self.lr, len(batch.rew)))
        return super().train(batch)

    def tune(self, **values):
        expect(values.get("lr", 0.0) >= 0.0, "lr", values.get("lr"), "0 or more")
        super().tune(**values)


class SummingMemory(ListMemory):
    """A memory that uses the agent's gamma."""

    tunable = ("batch_size", "gamma")

    def __init__(self, gamma, **options):
        super().__init__(**options)
        self.gamma = gamma


def training(memory_cls=ListMemory, batch_size=2, agent=(), **fields):
    """Return a training with four rounds of ten steps on one packet."""
    agent_cls = partial(TunedAgent, **dict(agent))
    to = plain(
        memory_cls, agent_cls=agent_cls, batch_size=batch_size, **{"rounds": 4} | FREE | fields
    )
    to.network = Network(delivery("a", 1))
    return to


@pytest.fixture(autouse=True)
def on_record(caplog):
    caplog.set_level("INFO", "tmrl_like")


def test_what_is_asked_for_holds_from_the_next_round_on_and_when_the_run_goes_on(tmp_path, caplog):
    to = training()
    values = {"agent.lr": 0.25, "memory.batch_size": 3, "trainer.steps": 5, "trainer.rounds": 2}
    asked = to.tune(values)
    record = to.run_epoch(to.network)[-1]
    assert asked.result(0.0) is None
    assert list(to.agent.seen) == [(0.25, 3)] * 10
    assert "agent.lr changes: 0.5 -> 0.25" in caplog.text
    assert record.items() >= values.items()
    assert "agent.gamma" not in record
    caplog.clear()
    two = resumed(to, training(), tmp_path)
    assert two.memory.nb_steps == 5
    assert "->" not in caplog.text
    assert two.run_epoch(two.network)[-1].items() >= values.items()
    assert list(two.agent.seen) == [(0.25, 3)] * 10


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"agent.lr": -1.0}, "lr is -1; expected 0 or more"),
        ({"trainer.steps": 2.5}, "steps is 2.5; expected a whole number"),
        (
            {"memory.gamma": 0.5},
            "gamma is 0.5 in the memory and 0.9 in the agent: give both the same",
        ),
    ],
)
def test_what_cannot_be_changes_nothing_and_stops_nothing(values, problem):
    to = training(SummingMemory)
    asked = to.tune({"agent.gamma": 0.9, "agent.lr": 0.1, "trainer.rounds": 1} | values)
    to.run_epoch(to.network)
    assert list(to.agent.seen) == [(0.5, 2)] * 40
    with pytest.raises(ConfigError, match=problem):
        asked.result(0.0)


@pytest.mark.parametrize("value", [1e30, -1e30, math.inf, -math.inf, math.nan])
def test_whatever_number_is_asked_for_is_set_or_refused(value):
    to = training(SummingMemory)
    answers = [to.tune({name: value}) for name in to.tuning.given]
    to.tuning.begin_round(to.ranks)
    assert {type(answer.exception(0.0)) for answer in answers} <= {type(None), ConfigError}


def test_a_change_that_is_cancelled_is_not_made():
    to = training()
    assert to.tune({"agent.lr": 0.1}).cancel()
    kept = to.tune({"memory.batch_size": 3})
    to.run_epoch(to.network)
    assert list(to.agent.seen) == [(0.5, 3)] * 40
    assert kept.result(0.0) is None


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("agent.depth", 3, r"agent\.depth cannot change while training; .*agent\.lr.* can"),
        ("agent.lr", "fast", "agent.lr is 'fast'; expected a number$"),
        ("trainer.sample_uses", "many", "trainer.sample_uses is 'many'; expected a number$"),
    ],
)
def test_what_may_not_change_and_what_is_no_number_is_refused_at_once(name, value, problem):
    with pytest.raises(ConfigError, match=problem):
        training().tune({name: value})


def test_the_agent_s_discount_is_the_memory_s_from_the_start_and_when_it_changes():
    to = training(SummingMemory, agent={"gamma": 0.5})
    assert (to.memory.gamma, to.agent.gamma) == (0.5, 0.5)
    to.tune({"agent.gamma": 0.99})
    to.run_epoch(to.network)
    assert (to.memory.gamma, to.agent.gamma) == (0.99, 0.99)
    to.agent_scheduler = lambda agent, epoch: agent.tune(gamma=0.95)
    asked = to.tune({"agent.lr": 0.1})
    to.run_epoch(to.network)
    assert (to.memory.gamma, to.agent.gamma) == (0.95, 0.95)
    assert asked.result(0.0) is None


@pytest.mark.parametrize(
    ("learnt", "lr", "line"),
    [(0.125, 0.125, ""), (-1.0, 0.5, "agent.lr stays 0.5: lr is -1.0; expected 0 or more")],
)
def test_a_resumption_goes_on_with_what_was_learnt_if_it_can(tmp_path, caplog, learnt, lr, line):
    to = training()
    to.agent_scheduler = lambda agent, epoch: setattr(agent, "lr", learnt)
    to.run_epoch(to.network)
    assert resumed(to, training(), tmp_path).agent.lr == lr
    assert line in caplog.text


@pytest.mark.parametrize(
    ("in_file", "lr", "line"),
    [
        (False, 0.125, "0.25 -> 0.125"),
        (True, 0.25, ""),  # the file has this value already
        (True, 0.5, "0.25 -> 0.5"),
    ],
)
def test_a_resumption_that_is_given_another_value_goes_by_it_and_says_so(
    tmp_path, caplog, in_file, lr, line
):
    to = training(agent={"lr": 0.5})
    to.tune({"agent.lr": 0.25})
    to.run_epoch(to.network)
    if in_file:
        to.tuning.given["agent.lr"] = 0.25
    caplog.clear()
    assert resumed(to, training(agent={"lr": lr}), tmp_path).agent.lr == lr
    said = [line for line in caplog.messages if "->" in line]
    assert said == ([f"agent.lr changes with this resumption: {line}"] if line else [])


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"sample_uses": 4.0, "batch_size": 8, "max_training_steps_per_env_step": 1.0}, 0.5),
        ({"sample_uses": 4.0, "batch_size": 8, "max_training_steps_per_env_step": 0.25}, 0.25),
        # held-out samples are not to be used
        ({"sample_uses": 4.0, "held_out_share": 0.25, "memory_cls": ReplayMemory}, 1.5),
        ({"sample_uses": 4.0, "held_out_share": 0.25}, 2.0),  # this memory holds nothing out
    ],
)
def test_the_lower_limit_of_ratio_and_uses_of_a_sample_holds(fields, limit):
    assert training(**fields).pacer.limit == limit


def test_each_round_says_which_limit_was_in_force():
    to = training(sample_uses=4.0, batch_size=8)
    limits = [feed(to, coming("w", [1]))["training_steps_per_env_step_limit"]]
    to.tune({"trainer.sample_uses": 2.0})
    limits.append(feed(to, coming("w", [2]))["training_steps_per_env_step_limit"])
    assert limits == [0.5, 0.25]


def test_ranks_change_the_same_at_the_same_step_and_only_rank_0_asks():
    networks = [coming("v", range(1, 6)), coming("w", [1])]

    def asked(**fields):
        def ask(agent, epoch):
            to.asked = [to.tune({"trainer.steps": 5, "agent.lr": lr}) for lr in (0.25, -1.0)]
            number = 2 if to.ranks.rank else 1
            to.asked += [to.tune({"agent.lr": 0.125}) for _ in range(number)]

        to = training(agent_scheduler=ask, **fields)
        return to

    one, two = epochs_of(
        ThreadRanks.of(2), networks, make=asked, rounds=2, update_buffer_interval=5
    )
    assert one.total_updates == two.total_updates == 10
    assert one.agent.seen == two.agent.seen
    assert one.agent.lr == two.agent.lr == 0.125
    errors = [asked.exception(0.0) for asked in one.asked]
    assert [type(error) for error in errors] == [NoneType, ConfigError, NoneType]
    for waits in two.asked:
        with pytest.raises(ConfigError, match="only rank 0 changes values"):
            waits.result(0.0)
