"""The number of training steps that a number of samples allows."""

import math

import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import Schedule
from tmrl_like.trainer.pacing import Pacer
from tmrl_like.types import Receipt


@pytest.mark.parametrize(
    ("ratio", "start", "updates", "samples", "allowed"),
    [
        (0.5, 0, 0, 1, False),
        (4.0, 10, 0, 9, False),
        (4.0, 10, 39, 10, True),
        (4.0, 10, 40, 10, False),
    ],
)
def test_pacing_is_arithmetic(ratio, start, updates, samples, allowed):
    pacer = Pacer(Schedule(max_training_steps_per_env_step=ratio, start_training=start))
    assert pacer.may_train(updates, samples) is allowed


def test_who_waits_is_told_once_when_the_tasks_up_to_there_are_done():
    pacer = Pacer(Schedule(max_training_steps_per_env_step=2.0))
    pacer.enter_lockstep(10)
    pacer.wait_for(Receipt("a", 1, 3), new_tasks=2)
    pacer.tasked_steps = 2
    pacer.wait_for(Receipt("b", 1, 1), new_tasks=1)
    told = {made: [receipt.worker for receipt in pacer.done(made)] for made in range(10, 18)}
    assert {made: workers for made, workers in told.items() if workers} == {14: ["a"], 16: ["b"]}


def test_another_ratio_holds_from_where_it_is_and_what_was_left_undone_is_forgiven():
    pacer = Pacer(Schedule(max_training_steps_per_env_step=4.0))
    assert pacer.may_train(399, 100)
    pacer.follow(0.5, 400, 100)  # all steps are made: the next sample allows half a step
    assert not pacer.may_train(400, 101)
    assert pacer.may_train(400, 102)
    assert not pacer.may_train(401, 102)
    # 450 steps are allowed and not made: catch up by at most 50 samples' steps
    pacer.follow(2.0, 400, 1000)
    assert pacer.may_train(499, 1000)
    assert not pacer.may_train(500, 1000)
    assert pacer.may_train(500, 1001)
    pacer.follow(math.inf, 500, 1000)
    assert pacer.may_train(10**9, 1000)
    pacer.follow(1.0, 10**6, 1000)
    assert pacer.may_train(10**6 + 49, 1000)
    assert not pacer.may_train(10**6 + 50, 1000)


def test_in_lockstep_another_ratio_holds_for_the_tasks_from_there_on():
    pacer = Pacer(Schedule(max_training_steps_per_env_step=2.0), recorded_samples=100)
    pacer.enter_lockstep(10)
    pacer.tasked_steps = 3
    pacer.follow(0.5, 12, 100)
    assert pacer.may_train(15, 100)  # the six steps already tasked remain
    assert not pacer.may_train(16, 100)
    pacer.tasked_steps = 5
    assert pacer.may_train(16, 100)
    assert not pacer.may_train(17, 100)
    with pytest.raises(ConfigError, match=r"is inf, .* expected a finite number"):
        pacer.follow(math.inf, 17, 100)
    assert not pacer.may_train(17, 100)


def test_a_recount_changes_the_tasks_of_samples_after_the_start_alone():
    pacer = Pacer(Schedule(start_training=10))
    pacer.enter_lockstep(0)
    pacer.recount(5, 30)
    assert pacer.tasked_steps == 20
    pacer.recount(30, 25)
    assert pacer.tasked_steps == 15
