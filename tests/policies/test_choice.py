"""Which form of an actor drives: the one that answers faster."""

import itertools

import pytest

from tmrl_like.policies.choice import faster


class Timed:
    """Takes a given time for an answer, the first one excepted, and the fifth of one that is `disturbed`."""

    def __init__(self, clock, seconds, twin=None, disturbed=False):
        self.clock, self.seconds, self.twin, self.asked = clock, seconds, twin, []
        self.slow = (0, 4) if disturbed else (0,)

    def in_numpy(self):
        return self.twin

    def act_(self, obs, test):
        self.clock.now += 10.0 if len(self.asked) in self.slow else self.seconds
        self.asked.append((obs, test))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(("own_s", "twins_s"), [(2e-4, 1e-4), (1e-4, 2e-4)])
def test_the_faster_one_is_chosen_by_its_best_time(own_s, twins_s):
    clock = Clock()
    twin = Timed(clock, twins_s)
    actor = Timed(clock, own_s, twin)
    assert faster(actor, "seen", 20.01, clock) is (twin if twins_s < own_s else actor)
    assert len(actor.asked) == len(twin.asked) == pytest.approx(34, abs=1)
    assert set(itertools.chain(actor.asked, twin.asked)) == {("seen", True)}


def test_slow_actors_are_asked_more_than_once_all_the_same():
    clock = Clock()
    twin = Timed(clock, 2.0, disturbed=True)
    actor = Timed(clock, 3.0, twin)
    assert faster(actor, None, 0.001, clock) is twin
    assert len(actor.asked) == 5


def test_an_actor_without_a_twin_is_not_asked():
    alone, own = Timed(Clock(), 1.0), Timed(Clock(), 1.0)
    own.twin = own
    assert faster(alone, None) is alone
    assert faster(own, None) is own
    assert not alone.asked + own.asked
