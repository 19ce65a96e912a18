"""The clock that sleeps and spins, on a simulated machine whose sleeps end as late as the test
says.
"""

import itertools
from unittest.mock import Mock

import numpy as np
import pytest

from tmrl_like.envs.clock import Clock

LOOK_S = 1e-6  # between two looks at the time


class Machine:
    """A machine whose time advances with each look and with sleeps, which end late."""

    def __init__(self, late_s):
        self.time, self.slept, self._late_s = 1000.0, 0.0, late_s

    def now(self):
        self.time += LOOK_S
        return self.time

    def sleep(self, duration):
        assert duration > 0
        self.slept += duration
        self.time += duration + next(self._late_s)

    def work(self, duration=40e-6):
        self.time += duration


always = itertools.repeat


def at_random(worst_s):
    return iter(np.random.default_rng(0).uniform(0.0, worst_s, 20_000).tolist())


def clock_on(late_s, spin_s=200e-6):
    """Return a machine whose sleeps end so late, and its clock."""
    machine = Machine(late_s)
    return machine, Clock(spin_s, machine.now, machine.sleep)


def wakes(machine, clock, period_s, periods):
    """Return how late a bare loop with absolute deadlines returned from each wait, seconds
    [periods].
    """
    late = []
    for deadline in machine.time + period_s * np.arange(1, periods + 1):
        clock.wait_until(deadline)
        late.append(machine.time - deadline)
    return np.array(late)


def test_a_loop_at_1_khz_keeps_its_deadlines_and_never_drifts():
    machine, clock = clock_on(at_random(150e-6))
    late = wakes(machine, clock, 1e-3, 10_000)
    assert late.min() >= 0
    assert np.median(late) <= 2 * LOOK_S
    # a sleep that ends later than expected costs its delay once, and nothing afterwards
    assert late[1:].max() <= 151e-6
    assert late[-100:].mean() <= 10e-6


def test_it_spins_for_as_long_as_most_sleeps_are_late_and_no_longer():
    machine, clock = clock_on(iter([50e-3, *(700 * [60e-6])]))
    wakes(machine, clock, 10e-3, 600)
    machine.slept = 0.0
    wakes(machine, clock, 10e-3, 1)
    assert machine.slept == pytest.approx(10e-3 - 60e-6, rel=1e-3)


def test_what_is_called_while_it_waits_makes_no_wait_longer():
    without = wakes(*clock_on(at_random(100e-6)), 2e-3, 5_000)
    machine, clock = clock_on(at_random(100e-6))
    clock.while_waiting(call := Mock(side_effect=machine.work))
    late = wakes(machine, clock, 2e-3, 5_000)
    assert call.call_count > 4_500
    assert late.max() <= without.max()
    assert np.median(late) <= 2 * LOOK_S


@pytest.mark.parametrize(("spin_s", "late_s"), [(200e-6, 200e-6), (50e-6, 60e-6)])
def test_without_time_for_it_nothing_is_called(spin_s, late_s):
    machine, clock = clock_on(always(late_s), spin_s)
    clock.while_waiting(call := Mock())
    late = wakes(machine, clock, 2e-3, 100)
    assert late[1:] == pytest.approx(np.full(99, late_s - spin_s), abs=2 * LOOK_S)
    clock.wait_until(machine.time - 1.0)
    call.assert_not_called()


def test_a_call_that_took_long_costs_that_once_and_is_made_again():
    machine, clock = clock_on(always(60e-6))
    call = Mock(side_effect=lambda: machine.work(5e-3 if call.call_count == 50 else 40e-6))
    clock.while_waiting(call)
    late = wakes(machine, clock, 10e-3, 1000)
    assert np.count_nonzero(late > 2 * LOOK_S) <= 2  # the first sleep, and this one
    assert call.call_count > 990
