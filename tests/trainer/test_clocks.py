"""Ages of samples are correct, whatever the clocks of worker and trainer show."""

import math
import random
from dataclasses import dataclass

import pytest

from tmrl_like.base import clocks
from tmrl_like.trainer.sample_ages import WorkerClocks
from tmrl_like.wire.messages import Beat

HOUR = 3600.0


@dataclass
class Machine:
    """The clocks of a machine, as functions of the true time `at`."""

    wall_off_s: float = 0.0
    booted_at: float = -1e5
    drift: float = 0.0

    def wall(self, at):
        return 1.7e9 + at + self.wall_off_s

    def up(self, at):
        return (at - self.booted_at) * (1 + self.drift)

    def begin(self, at):
        """Start a process, which notes at which Unix time `up` was 0 by the present clock."""
        self.epoch_s = self.wall(at) - self.up(at)
        return self

    def unix(self, at):
        return self.epoch_s + self.up(at)


class Fleet:
    """A trainer, and a worker that sends it beats and samples."""

    def __init__(self, monkeypatch, worker=None, trainer=None):
        self.now = 0.0
        self.worker = (worker or Machine()).begin(0.0)
        self.trainer = (trainer or Machine(booted_at=-333.0)).begin(0.0)
        self.known = WorkerClocks()
        monkeypatch.setattr(clocks, "unix_s", lambda: self.trainer.unix(self.now))

    def said(self, at):
        return Beat("w", at_s=self.worker.wall(at), up_s=self.worker.up(at))

    def beat(self, late_s=0.01):
        """Receive a beat that was sent `late_s` ago."""
        self.known.on_beat(self.said(self.now - late_s))

    def live(self, seconds, late_s=0.01):
        """Let time pass, with two beats a second."""
        for _ in range(int(2 * seconds)):
            self.now += 0.5
            self.beat(late_s)

    def age_s(self, observed_at, epoch_s=None):
        """Return the age of a sample that arrives now, by the time that a live process put on
        it.
        """
        epoch_s = self.worker.epoch_s if epoch_s is None else epoch_s
        return clocks.unix_s() + self.known.ahead_s("w", epoch_s) - self.worker.unix(observed_at)

    def seems_s(self, age_s):
        """Return the age, in tenths of a second, of a sample of this true age."""
        return round(self.age_s(self.now - age_s), 1)


@pytest.fixture
def fleet(monkeypatch):
    return Fleet(monkeypatch)


def test_what_a_dead_process_left_goes_by_its_machines_clock_now(fleet):
    fleet.worker.wall_off_s = HOUR
    fleet.worker.begin(0.0)
    fleet.live(1.0)
    assert fleet.age_s(0.5, epoch_s=0.0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(
    ("late_s", "pause_s", "at_first_s", "later_s"),
    [
        (2.0, 0.0, 2.0, 0.0),  # a link that stays slow
        (0.01, 20.0, 22.0, 2.0),  # a pause of a virtual machine
    ],
)
def test_what_delays_beats_for_good_is_noticed_within_five_minutes(
    fleet, late_s, pause_s, at_first_s, later_s
):
    fleet.live(60.0)
    fleet.now += pause_s
    fleet.worker.booted_at += pause_s  # its clock stood still
    fleet.live(150.0, late_s)
    assert fleet.seems_s(2.0) == at_first_s
    fleet.live(150.0, late_s)
    assert fleet.seems_s(2.0) == later_s


def test_a_link_that_is_slow_after_a_silence_is_measured_by_the_beats_before_it(fleet):
    fleet.live(60.0)
    fleet.now += HOUR
    fleet.live(10.0, late_s=2.0)
    assert fleet.seems_s(2.0) == 2.0


@pytest.mark.parametrize("booted_ago", [30.0, 5000.0, 1e7])
def test_a_worker_whose_machine_was_started_again_or_is_another_begins_again(fleet, booted_ago):
    fleet.live(60.0)
    fleet.worker.booted_at = fleet.now - booted_ago
    fleet.worker.begin(fleet.now)
    fleet.live(1.0)
    assert fleet.seems_s(3.0) == 3.0


@pytest.mark.fault(
    "clocks",
    "the clocks of a worker's and the trainer's machine jump by an hour, at random",
    "ages of samples stay right: no young sample is dropped",
)
def test_at_random_ages_stay_right(monkeypatch):
    for seed in range(5):
        rng = random.Random(seed)
        fleet = Fleet(
            monkeypatch,
            Machine(rng.uniform(-1, 1) * HOUR, -rng.uniform(10, 1e7), rng.uniform(-1, 1) * 1e-4),
        )
        fleet.beat()
        queue = []
        for _ in range(2000):
            fleet.now += 0.5
            if rng.random() < 0.01:
                machine = rng.choice((fleet.worker, fleet.trainer))
                machine.wall_off_s += rng.choice((-HOUR, HOUR, -1.0, 1.0))
            queue.append(fleet.said(fleet.now))
            if rng.random() < 0.9:  # otherwise the link holds beats back
                for beat in queue:
                    fleet.known.on_beat(beat)
                queue.clear()
            age_s = rng.uniform(0, 10)
            assert fleet.age_s(fleet.now - age_s) == pytest.approx(age_s, abs=0.05), seed


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300])
def test_numbers_that_no_clock_shows_count_for_nothing(fleet, number):
    fleet.beat()
    fleet.known.on_beat(Beat("w", at_s=1.7e9, up_s=number))
    fleet.known.on_beat(Beat("w", at_s=number, up_s=5e5))
    assert fleet.known.ahead_s("w", number) == 0.0
    assert fleet.seems_s(3.0) == 3.0


def test_of_very_many_workers_only_the_newest_are_known(fleet):
    fleet.worker.wall_off_s = HOUR
    at_s = fleet.worker.wall(0.0)
    for k in range(10_001):
        fleet.known.on_beat(Beat(f"w{k}", at_s=at_s, up_s=100.0))
    known = [fleet.known.ahead_s(f"w{k}", at_s - 100.0) != 0.0 for k in (0, 1, 10_000)]
    assert known == [False, True, True]
