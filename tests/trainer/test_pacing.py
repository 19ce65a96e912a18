"""How many training steps a number of samples allows."""

import math

import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import Schedule
from tmrl_like.trainer.pacing import Pacer


@pytest.mark.parametrize(
    ("ratio", "start", "updates", "samples", "allowed"),
    [
        (1.0, 0, 0, 0, False),
        (1.0, 0, 0, 1, True),
        (1.0, 0, 1, 1, False),
        (0.5, 0, 0, 1, False),
        (0.5, 0, 0, 2, True),
        (4.0, 10, 0, 9, False),
        (4.0, 10, 39, 10, True),
        (4.0, 10, 40, 10, False),
    ],
)
def test_pacing_is_arithmetic(ratio: float, start: int, updates: int, samples: int, allowed: bool) -> None:
    pacer = Pacer(Schedule(max_training_steps_per_env_step=ratio, start_training=start))
    assert pacer.may_train(updates, samples) is allowed


class World:
    """Packets of ten samples, and training that makes at most `speed` steps per sample.

    One step in ten is an overrun where training makes more than `late_above` steps per sample, and `own_late` steps of
    each packet are anyway; packets are `late_s` late where training makes more than `stale_above` steps per sample.
    """

    def __init__(self, speed: float, start_training: int = 0, bound: float = 20.0) -> None:
        self.speed = speed
        self.late_above = self.stale_above = math.inf
        self.own_late, self.late_s = 0, 1.0
        self.training_steps = self.samples = self.made = self.overruns = 0
        schedule = Schedule(
            max_training_steps_per_env_step="auto", auto_ratio_bound=bound, start_training=start_training
        )
        self.pacer = Pacer(schedule)

    def packets(self, n: int, new: int = 10) -> float:
        """Take them; returns the training steps per sample."""
        before = self.training_steps
        for _ in range(n):
            self.overruns += self.own_late + (self.made > self.late_above * new)
            age_s = 0.1 + self.late_s * (self.made > self.stale_above * new)
            driven = self.samples + new, self.overruns
            self.pacer.before_samples(self.training_steps, self.samples, new, age_s, driven)
            self.samples += new
            self.train(int(self.speed * new))
        return (self.training_steps - before) / (n * new)

    def train(self, steps: int) -> None:
        self.made = 0
        while self.made < steps and self.pacer.may_train(self.training_steps, self.samples):
            self.training_steps, self.made = self.training_steps + 1, self.made + 1


def test_auto_is_at_its_bound_at_once_where_nothing_is_late():
    world = World(speed=1000.0, bound=8.0)
    assert world.packets(1) == world.packets(100) == 8.0
    assert world.pacer.metrics() == {
        "training_steps_per_env_step_allowed": 8.0,
        "training_steps_held_by": "bound",
    }


def test_auto_uses_what_the_machine_can_give_while_deadlines_hold():
    world = World(speed=12.0)
    world.late_above = 6.0
    world.packets(50)
    assert world.pacer.held_by == "overruns"
    overruns = world.overruns
    assert 4.5 < world.packets(1000) <= 6.5
    assert world.overruns - overruns < 0.03 * 10_000
    world.late_above = math.inf
    world.packets(200)
    assert world.packets(100) == 12.0
    assert world.pacer.held_by == "learner"


def test_a_slow_learner_gives_what_it_can_and_a_cut_is_of_what_it_gave():
    world = World(speed=5.0)
    assert world.packets(100) == 5.0
    assert world.pacer.metrics()["training_steps_per_env_step_allowed"] == 20.0
    assert world.pacer.held_by == "learner"
    world.late_above = 4.0
    world.packets(10)
    assert world.pacer.ratio == pytest.approx(0.7 * 5.0)


def test_packets_that_come_later_than_while_training_rested_cut_the_ratio():
    world = World(speed=100.0, start_training=220)
    world.stale_above = 10.0
    world.packets(42)
    assert (world.pacer.own_age_s, world.pacer.held_by) == (pytest.approx(0.1), "sample age")
    assert world.pacer.ratio < 20.0
    world.late_s, world.pacer.ratio = 60.0, 20.0  # a link was down
    world.packets(40)
    assert world.pacer.ratio == 20.0


def test_what_is_late_while_training_rests_is_not_its_doing():
    world = World(speed=100.0, start_training=150)
    world.own_late = 1
    world.packets(14)
    assert world.pacer.own_late_share == pytest.approx(0.1 / 2)
    world.packets(150)
    assert world.pacer.ratio == 20.0
    assert world.packets(100) == 20.0


def test_what_stays_late_at_the_smallest_ratio_is_not_its_doing():
    world = World(speed=100.0)
    world.own_late = 1
    world.packets(35)
    assert world.pacer.ratio < 1.0
    world.packets(500)
    assert world.packets(100) == 20.0
    assert world.pacer.held_by == "bound"


def test_no_burst_follows_a_time_without_training_or_without_samples():
    world = World(speed=0.0)
    world.packets(1000)
    world.train(100_000)
    assert world.made == 50 * 20
    world.train(100_000)
    assert world.made == 0
    world.speed = 100.0
    assert world.packets(10) == 20.0


def test_packets_are_used_up_however_many_samples_they_have():
    world = World(speed=100.0)
    assert world.packets(10, new=1000) == 20.0


def test_training_steps_before_a_resumption_do_not_count_as_used_after_it():
    world = World(speed=5.0)
    world.training_steps = 10_000
    world.pacer.ratio, world.pacer.allowed_steps = 10.0, 10_000.0
    world.packets(21)
    assert (world.pacer.ratio, world.pacer.held_by) == (10.0, "learner")


def test_samples_that_are_read_back_from_a_log_allow_no_burst():
    world = World(speed=0.0)
    world.pacer.before_samples(0, 0)
    world.samples = 5000
    world.train(100_000)
    assert world.made == 0


@pytest.mark.parametrize(("ratio", "done"), [(1.0, [0, 1, 2, 3]), (0.5, [1, 3, 5, 7]), (2.0, [0, 0, 1, 1])])
def test_in_lockstep_the_tasks_of_a_step_are_done_when_as_many_training_steps_are_made(ratio, done):
    """`done`: of so many environment steps, after 0, 1, 2, 3 training steps."""
    pacer = Pacer(Schedule(max_training_steps_per_env_step=ratio), recorded_samples=50, unpaced_steps=100)
    pacer.enter_lockstep(40)
    assert not pacer.may_train(40, 50)
    for made, steps in enumerate(done):
        assert max(n for n in range(20) if pacer.is_done(40 + made, n)) == steps
        for tasked in range(20):
            pacer.tasked_steps = tasked
            assert pacer.may_train(40 + made, 1000) == (tasked > steps)


@pytest.mark.parametrize("ratio", ["auto", math.inf])
def test_lockstep_needs_a_number(ratio):
    pacer = Pacer(Schedule(max_training_steps_per_env_step=ratio))
    with pytest.raises(ConfigError, match=f"is {ratio}, .* expected a finite number"):
        pacer.enter_lockstep(0)


def test_another_ratio_holds_from_where_it_is_and_what_was_left_undone_is_forgiven():
    pacer = Pacer(Schedule(max_training_steps_per_env_step=4.0))
    assert pacer.may_train(399, 100)
    pacer.follow(0.5, math.inf, 400, 100)  # all was made: the next sample allows half a step
    assert not pacer.may_train(400, 101)
    assert pacer.may_train(400, 102)
    assert not pacer.may_train(401, 102)
    pacer.follow(2.0, math.inf, 400, 1000)  # 450 were allowed and not made: no burst of more than 50 samples' steps
    assert pacer.may_train(499, 1000)
    assert not pacer.may_train(500, 1000)
    assert pacer.may_train(500, 1001)
    pacer.follow(math.inf, math.inf, 500, 1000)
    assert pacer.may_train(10**9, 1000)
    pacer.follow(1.0, math.inf, 10**6, 1000)
    assert pacer.may_train(10**6 + 49, 1000)
    assert not pacer.may_train(10**6 + 50, 1000)


def test_a_ratio_and_auto_may_follow_each_other():
    pacer = Pacer(Schedule(max_training_steps_per_env_step=1.0))
    pacer.follow("auto", 5.0, 100, 100)
    assert not pacer.may_train(100, 100)
    pacer.before_samples(100, 100, 1)
    assert pacer.may_train(104, 101)
    assert not pacer.may_train(105, 101)
    pacer.follow(1.0, 5.0, 105, 101)
    assert not pacer.may_train(105, 101)
    assert pacer.may_train(105, 102)


def test_in_lockstep_another_ratio_holds_for_the_tasks_from_there_on():
    pacer = Pacer(Schedule(max_training_steps_per_env_step=2.0))
    pacer.enter_lockstep(10)
    pacer.tasked_steps = 3
    pacer.follow(0.5, math.inf, 12, 100)
    assert pacer.may_train(15, 100)  # the six steps that were tasked stay so
    assert not pacer.may_train(16, 100)
    pacer.tasked_steps = 5
    assert pacer.may_train(16, 100)
    assert not pacer.may_train(17, 100)
    with pytest.raises(ConfigError, match=r"is auto, .* expected a finite number"):
        pacer.follow("auto", 20.0, 17, 100)
    assert not pacer.may_train(17, 100)
