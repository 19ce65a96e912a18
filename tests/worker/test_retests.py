"""A test episode of a policy that may become the best one is repeated, and a test uses one policy
throughout.
"""

import math
import threading
from functools import partial

import numpy as np
import pytest
from house import alone, linear_actor, offer
from kit.environments import calling
from kit.fakes import CountingEnv

from tmrl_like.worker.lane import Plan
from tmrl_like.worker.retests import Retests


@pytest.mark.parametrize(
    ("returns", "repeated"),
    [
        (  # the first one is never repeated; others are, up to three times, until one falls short
            [1.0, 5.0, 6.0, 5.0, 9.0, 5.0, 5.5, 5.5, 6.0],
            [False, True, True, False, True, False, True, True, False],
        ),
        ([0.0, 5.0, -np.inf, 5.0], [False, True, False, True]),
    ],
)
def test_a_policy_is_tested_again_while_it_is_better_than_the_best(returns, repeated):
    retests = Retests()
    assert [retests.wants_another(return_, 1, 0) for return_ in returns] == repeated


def test_a_repetition_begins_only_if_tests_have_taken_no_more_steps_than_training():
    retests = Retests()
    steps = [(9, 1), (10, 11), (11, 11), (11, 12), (11, 13)]  # of training, of tests
    wants = [retests.wants_another(5.0, *trained_and_tested) for trained_and_tested in steps]
    assert wants == [False, False, True, True, False]


class PolicysReturn(CountingEnv):
    """An environment that rewards each step with the policy's output: v / 10 for version v."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(np.arctanh(action[0])), *rest


def weights_of(version):
    return linear_actor(bias=version / 10).weights()


def driven(steps, others=()):
    """Drive `steps` steps with a new policy after each but the first; something else drives the
    step after those in `others`, too. Return for each episode: is it a test, its return, its policy
    version.
    """
    episodes = []
    with alone(partial(PolicysReturn, 4)) as worker:
        plan = Plan(worker.lanes, test_episode_interval=2, on_episode=episodes.append)
        driving = worker.lanes[0].steps(plan)
        worker.use_weights(weights_of(1), 1)
        for version, _ in zip(range(1, steps + 1), driving, strict=False):
            worker.use_weights(weights_of(version), version)
            worker.loop.driver.steps_of_others += version in others
    return [(stats.test, stats.return_, stats.policy_version) for stats in episodes]


def test_a_better_policy_is_tested_three_times_in_a_row_in_the_place_of_later_tests():
    episodes = driven(80)
    assert "".join("t" if test else "." for test, *_ in episodes) == "t..ttt......ttt...."
    tested = [version for test, _, version in episodes if test]
    assert len(set(tested[1:4])) == len(set(tested[4:7])) == 1


def test_a_test_in_which_something_else_drove_counts_for_no_policy_and_ends_the_repetition():
    episodes = driven(40, others=(18,))
    assert [(test, version) for test, _, version in episodes[:6]] == [
        *((True, 1), (False, 8), (False, 12), (True, 12), (True, 0), (False, 24))
    ]


@pytest.mark.parametrize("is_too_old", [True, False])
def test_a_test_that_two_policies_drove_counts_for_neither(is_too_old):
    """The first one is too old to be held, or is none: the actor is untrained."""
    episodes = []
    max_age_s = 10.0 if is_too_old else math.inf
    with alone(partial(PolicysReturn, 4), max_policy_age_s=max_age_s) as worker:
        plan = Plan(worker.lanes, test_episode_interval=2, on_episode=episodes.append)
        if is_too_old:
            worker.use_weights(weights_of(1), 1)
        for number, _ in zip(range(9), worker.lanes[0].steps(plan), strict=False):
            if number == 1:
                worker.loop.driver.expires_at = 0.0 if is_too_old else math.inf
                worker.use_weights(weights_of(2), 2)
                assert worker.policy_version == 2
    assert [(stats.test, stats.policy_version) for stats in episodes] == [
        (True, 0),
        (False, 2),
    ]


def test_a_thread_that_hung_in_an_earlier_test_does_not_let_go_of_a_later_ones_policy():
    hung, free, versions = [], threading.Event(), []

    def before_step(env):
        if not hung:
            hung.append(threading.current_thread())
            free.wait()
        elif not free.is_set():
            free.set()
            hung[0].join()
            worker.use_weights(weights_of(2), 2)
            versions.append(worker.policy_version)

    with alone(calling(before_step), hang_timeout_s=0.4) as worker:
        worker.use_weights(weights_of(1), 1)
        worker.run_episodes(nb_episodes=2)
    assert versions == [1]


def test_a_test_that_is_stopped_holds_no_policy(inproc_house, until):
    trainer = inproc_house.trainer()
    worker = inproc_house.worker(partial(CountingEnv, 10**6, 0.001))
    offer(trainer, worker)
    running = inproc_house.start(worker.run_episodes, 10**6)
    until(lambda: worker.policy_version == 1)
    offer(trainer, worker)
    assert worker.policy_version == 1
    worker.stop()
    running.join(20)
    assert worker.loop.driver.refresh()
    assert worker.policy_version == 2
