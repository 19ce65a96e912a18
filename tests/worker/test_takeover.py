"""A driver takes over from the policy: the loop never waits for its answer, and each step records
who drove.
"""

import contextlib
import logging
import threading
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
from house import alone, collect
from kit.environments import Recording, calling
from kit.fakes import LinearActor
from kit.refusals import one_line

from tmrl_like.types import ActionSource


class Hand:
    """A driver that wants what the test says."""

    wants = None
    made_with = None
    is_closed = False
    is_program = False

    def __init__(self):
        self.calls = threading.Semaphore(0)
        self.may_answer = threading.Event()
        self.may_answer.set()

    def make(self, **made_with):
        self.made_with = made_with
        return self

    def __call__(self, obs):
        self.calls.release()
        self.may_answer.wait(30)
        if isinstance(self.wants, Exception):
            raise self.wants
        return self.wants

    def close(self):
        self.is_closed = True
        self.may_answer.set()

    def is_asked(self):
        """Wait until the driver is asked once more."""
        while self.calls.acquire(blocking=False):
            pass
        assert self.calls.acquire(timeout=30)

    def was_asked(self):
        """Wait until the driver has answered with its present `wants`."""
        self.is_asked()
        assert self.calls.acquire(timeout=30)


class Zero(LinearActor):
    """An actor with extras, whose action is 0."""

    extras: ClassVar = {"greedy": np.bool_(True)}


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def make(hand):
    """Return a function that makes a worker with episodes of ten steps. Its script maps steps,
    counted over all episodes, to what is called before them.
    """
    with contextlib.ExitStack() as stack:

        def make(script, **options):
            env_cls = calling(lambda env: script.get(env.total_steps + 1, bool)(), Recording)
            return stack.enter_context(alone(env_cls, Zero, takeover=hand.make, **options))

        yield make
    assert hand.is_closed


@pytest.fixture
def wants(hand):
    """Return a function that makes script items: from that step on, the driver wants a value."""

    def wants(value):
        def happens():
            hand.wants = value
            hand.was_asked()

        return happens

    return wants


@pytest.mark.parametrize("source", [ActionSource.HUMAN, ActionSource.PROGRAM])
def test_who_takes_over_drives_from_the_next_step_on_until_he_gives_back(
    hand, make, wants, source, caplog
):
    """A program says that it is one."""
    caplog.set_level(logging.INFO)
    hand.is_program, said, who = source is ActionSource.PROGRAM, [], source.name.lower()
    script = {3: wants([0.5]), 5: wants([-0.25]), 7: wants(None)}
    worker = make({6: lambda: said.append(worker.condition().driver)} | script)
    _, samples = collect(worker)
    assert worker.env.sent == [0, 0, 0, 0.5, 0.5, -0.25, -0.25, 0, 0, 0]
    assert [s.act.tolist()[0] for s in samples] == worker.env.sent
    by_policy, by_hand = [(ActionSource.POLICY, True)] * 3, [(source, False)] * 4
    found = [(sample.info.timing.source, sample.info["greedy"]) for sample in samples]
    assert found == by_policy + by_hand + by_policy
    assert said == [who]
    assert f"takeover: {who} gives back after 4 steps" in caplog.text
    assert hand.made_with == {
        "action_space": worker.env.action_space,
        "default_action": np.zeros(1),
    }


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        (OSError("unplugged"), "Hand failed, the policy drives: OSError: unplugged"),
        ([2.0], "its action is [2.0]"),
    ],
)
def test_for_a_driver_that_raises_or_gives_no_action_the_policy_drives(
    make, wants, caplog, wrong, line
):
    worker = make({2: wants([0.5]), 4: wants(wrong), 6: wants([0.25])})
    collect(worker)
    assert worker.env.sent == [0, 0, 0.5, 0.5, 0, 0, 0.25, 0.25, 0.25, 0.25]
    assert caplog.text.count(line) == 1


@pytest.mark.fault("robots", "who took over hangs", "the policy drives")
def test_for_a_driver_that_hangs_the_policy_drives(hand, make, wants, caplog):
    def hangs():
        hand.may_answer.clear()
        hand.is_asked()
        threading.Event().wait(0.6)

    def answers():
        hand.may_answer.set()
        hand.was_asked()

    worker = make({2: wants([0.5]), 4: hangs, 6: answers})
    collect(worker)
    assert worker.env.sent == [0, 0, 0.5, 0.5, 0, 0, 0.5, 0.5, 0.5, 0.5]
    assert "takeover: Hand has not answered for 0.5 s: the policy drives" in caplog.text


@pytest.mark.parametrize(
    "make", [lambda action_space: Hand(), lambda action_space, default_action, port: Hand()]
)
def test_what_takes_other_arguments_than_a_driver_is_refused(make):
    with one_line(
        "what may take over is '[^ ]*<lambda>'; expected a class that takes action_space"
    ):
        alone(takeover=make)


class Listening(threading.Thread):
    """A driver whose base class takes other arguments."""

    def __init__(self, **given):
        super().__init__()
        self.close = given["default_action"].tolist

    def __call__(self, obs):
        return None


def test_a_driver_may_take_any_arguments_though_its_base_takes_none_of_them():
    with alone(takeover=Listening) as worker:
        assert not worker.run_episode().fault


def test_a_driver_that_takes_the_observation_space_is_given_it(hand):
    def make(action_space, default_action, observation_space=None):
        return hand.make(observed=observation_space)

    with alone(takeover=make) as worker:
        assert hand.made_with == {"observed": worker.env.observation_space}
    with alone(takeover=partial(make, observation_space="its own")):
        assert hand.made_with == {"observed": "its own"}


def test_a_driver_that_cannot_be_closed_is_one_line_at_the_end(hand, caplog):
    hand.close = None
    with alone(takeover=hand.make) as worker:
        worker.run_episode()
    assert caplog.text.count("takeover: closing Hand failed: ") == 1


def test_test_episodes_are_not_taken_over_unless_that_is_asked_for(make, wants):
    worker = make({2: wants([0.5])})
    worker.run_episode()
    assert worker.env.sent == [0] * 10


def test_a_test_counts_for_no_policy_if_a_driver_took_it_over(make, wants):
    worker = make({3: wants([0.5]), 5: wants(None)}, takeover_in_tests=True)
    worker.loop.counts.policy_version = 7
    assert [worker.run_episode().policy_version for _ in range(2)] == [0, 7]
