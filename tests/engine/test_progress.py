"""The link's bookkeeping against a simulated stream, seats and trainer, which lose, double, refuse and forget."""

import itertools
import random
from collections import deque

import pytest

from tmrl_like.engine.progress import Progress, StreamProgress
from tmrl_like.engine.subjects import part_of
from tmrl_like.wire import messages as m


def bundle(worker, first, last=None, previous=None):
    return m.Bundle(worker, 7, (last or first) - first + 1, first - 1 if previous is None else previous)


class Reading:
    """One stream and its link, message by message."""

    def __init__(self, parts=None):
        self.progress = Progress()
        self.stream = self.progress.stream = StreamProgress(parts)
        self.sequence = 0

    def read(self, worker, first, last=None, now=0.0, left=0, previous=None):
        self.sequence += 1
        self.stream.note(self.sequence, part_of(worker), left)
        self.stream.is_silent = False
        message = bundle(worker, first, last, previous)
        return self.progress.offer(message, last or first, 1000, now, self.sequence)

    def ack(self, worker, stored, received=None, again=False, now=0.0):
        received = stored if received is None else received
        return self.progress.on_ack(m.Ack(worker, 7, stored, received, again), now)

    def purges(self):
        return list(self.progress.purges())


@pytest.fixture
def reading():
    return Reading()


def test_what_is_stored_may_go_up_to_the_first_that_is_not(reading):
    assert [reading.read("a", 1), reading.read("b", 1), reading.read("a", 2)] == [True] * 3
    reading.ack("a", 2)
    assert reading.purges() == [(None, 2)]
    reading.stream.note_purged(None, 2)
    assert reading.purges() == []
    reading.ack("b", 1)
    assert reading.purges() == [(None, 4)]


def test_received_is_not_stored(reading):
    reading.read("a", 1)
    reading.ack("a", 0, received=1)
    assert reading.purges() == []


def test_a_stream_that_is_away_is_purged_once_it_is_read_again_since_its_numbers_may_be_others_messages_then(reading):
    reading.read("a", 1)
    reading.ack("a", 1)
    reading.stream.is_silent = True
    assert reading.purges() == []
    reading.progress.begin(1)  # it has lost message 1, and this is another one
    reading.sequence = 0
    reading.read("b", 1)
    assert reading.purges() == []


def test_what_comes_twice_is_passed_on_once_and_goes_with_the_first(reading):
    assert [reading.read("a", 1, 3), reading.read("a", 1, 3), reading.read("a", 2, 4)] == [True, False, True]
    reading.ack("a", 3)
    assert reading.purges() == [(None, 3)]
    reading.ack("a", 4)
    assert reading.purges() == [(None, 4)]


def test_what_lies_behind_a_hole_is_not_passed_on_and_may_go_since_it_comes_again(reading):
    assert [reading.read("a", 1), reading.read("a", 3), reading.read("a", 2), reading.read("a", 3)] == [1, 0, 1, 1]
    reading.ack("a", 2)
    assert reading.purges() == [(None, 4)]
    assert reading.progress.asks(100.0) == []


def test_a_hole_that_the_stream_does_not_fill_is_asked_for_ever_less_often(reading):
    reading.read("a", 1)
    reading.ack("a", 1)
    reading.read("a", 3, now=10.0, left=2)
    assert reading.progress.asks(11.0) == []  # what follows may fill it
    reading.read("b", 1, now=11.0)
    reading.read("b", 2, now=11.0)
    asks = [now / 10 for now in range(110, 2000) for _ in reading.progress.asks(now / 10)]
    assert reading.progress.asks(1000.0) == [m.Ack("a", 7, 1, 1, again=True)]
    assert 5 <= len(asks) <= 10
    assert all(later - earlier >= 2.0 for earlier, later in itertools.pairwise(asks))
    reading.read("a", 2)
    assert reading.progress.asks(2000.0) == []


def test_while_the_stream_is_silent_a_hole_is_asked_for_at_once(reading):
    reading.read("a", 1, left=5)
    reading.stream.is_silent = True
    assert not reading.progress.offer(bundle("a", 3), 3, 1000, 1.0)
    assert reading.progress.asks(1.6) == [m.Ack("a", 7, 0, 1, again=True)]


def test_the_trainer_itself_has_nothing_sent_again_that_the_stream_holds(reading):
    reading.read("a", 1)
    reading.read("a", 2)
    assert reading.ack("a", 0, received=1, again=True) == m.Ack("a", 7, 0, 1)
    assert reading.progress.read_again
    assert reading.progress.asks(100.0) == []
    reading.progress.begin(2)
    assert not reading.progress.read_again
    assert [reading.read("a", 1), reading.read("a", 2)] == [False, True]


def test_what_it_lacks_and_the_stream_does_not_hold_is_asked_for(reading):
    reading.read("a", 5)
    assert reading.ack("a", 0, received=0, again=True) == m.Ack("a", 7, 0, 0)
    assert not reading.progress.read_again
    assert reading.progress.asks(0.4) == []
    assert reading.progress.asks(0.6) == [m.Ack("a", 7, 0, 0, again=True)]
    assert reading.read("a", 5, previous=0)


def test_what_the_trainer_did_not_take_though_much_that_came_later_is_stored_is_read_again_and_then_given_up(
    reading, caplog
):
    for attempt in (1, 2, 3):
        reading.sequence = 0
        assert reading.read("a", 5, now=100.0 * attempt)
        reading.read("b", attempt, now=100.0 * attempt + 1)
        reading.ack("b", attempt)
        assert reading.purges() == []
        reading.read("b", 10 + attempt, previous=0, now=100.0 * attempt + 30)
        assert not reading.progress.read_again
        reading.ack("b", 10 + attempt)
        assert reading.purges() == ([(None, 4)] if attempt == 3 else [])
        assert reading.progress.read_again == (attempt < 3)
        reading.progress.begin(3)
    assert caplog.messages == ["packets 5 to 5 of worker a are given up: the trainer does not take them"]


def test_a_dismissed_process_keeps_nothing_in_the_stream_and_others_of_its_worker_do(reading):
    reading.read("a", 1)
    reading.read("a", 2)
    reading.progress.on_dismissal(("a", 7))
    assert reading.purges() == [(None, 3)]
    assert reading.read("a", 3)  # so that it is dismissed again
    reading.sequence += 1
    reading.stream.note(reading.sequence, part_of("a"), 0)
    reading.progress.offer(m.Bundle("a", 8, 1), 1, 1000, 0.0, reading.sequence)
    assert reading.purges() == [(None, 4)]


def test_several_ranks_purge_each_its_own_parts():
    reading = Reading([part_of("w1"), part_of("w2")])
    reading.read("w1", 1)
    reading.read("w2", 1)
    reading.read("w1", 2)
    reading.ack("w1", 2)
    assert reading.purges() == [(part_of("w1"), 4)]
    reading.stream.note_purged(part_of("w1"), 4)
    reading.ack("w2", 1)
    assert reading.purges() == [(part_of("w2"), 3)]


def test_no_more_is_taken_than_the_trainer_can_keep_unread(reading):
    assert reading.progress.has_room(0.0)
    sequence = 0
    while reading.progress.has_room(0.0):
        sequence += 1
        reading.progress.offer(bundle("a", sequence), sequence, 1 << 20, 0.0)
    assert 40 <= sequence <= 60
    reading.ack("a", 0, received=1)
    assert reading.progress.has_room(0.0)
    reading.progress.offer(bundle("a", sequence + 1), sequence + 1, 1 << 20, 0.0)
    assert not reading.progress.has_room(5.0)
    assert reading.progress.has_room(11.0)  # it did not take them: no reason to wait for ever


class World:
    """Worker processes with seats, a stream that loses what it takes, and a trainer. Half of the workers die."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.stream = []  # (sequence, process, first, last, previous)
        self.newest = 0
        self.names = [f"w{i}" for i in range(6)]  # the last one goes on until the others are through
        self.made = dict.fromkeys(self.names, 0)
        self.cursor = dict.fromkeys(self.names, 1)  # what the seat publishes next
        self.confirmed = dict.fromkeys(self.names, 0)
        self.dead = set()
        self.link = Reading()
        self.unread = deque()
        self.received = dict.fromkeys(self.names, 0)
        self.taken = deque()
        self.stored = dict.fromkeys(self.names, 0)
        self.now = 0.0

    def chance(self, share):
        return self.random.random() < share

    def work(self):
        name = self.random.choice(self.names)
        if name in self.dead:
            return
        is_through = self.made[name] >= 40 and (name != "w5" or self.are_through)
        if not is_through or self.confirmed[name] < self.made[name]:
            if not is_through and self.made[name] < self.stored[name] + 30:
                self.made[name] += self.random.randint(0, 3)
            first, last = self.cursor[name], self.made[name]
            if first > last:
                self.cursor[name] = self.confirmed[name] + 1  # silence: from the oldest unconfirmed on
                return
            last = min(last, first + self.random.randint(0, 4))
            self.cursor[name] = last + 1
            if self.chance(0.15):
                return  # refused or lost
            self.newest += 1
            self.stream.append((self.newest, name, first, last))
            if self.chance(0.8) and first <= self.confirmed[name] + 1:
                self.confirmed[name] = max(self.confirmed[name], last)
        elif name < "w3":
            self.dead.add(name)

    def read(self):
        if (self.now < 60 and self.chance(0.003)) or (self.link.progress.read_again and self.chance(0.05)):
            self.at = 0
            self.link.progress.begin(len(self.stream))
        ahead = [entry for entry in self.stream if entry[0] > self.at]
        if ahead and self.link.progress.has_room(self.now):
            self.at, name, first, last = ahead[0]
            self.link.sequence = self.at - 1
            if self.link.read(name, first, last, self.now, len(ahead) - 1):
                self.unread.append((name, first, last))

    at = 0

    def train(self):
        if self.unread and self.chance(0.7):
            name, first, last = self.unread.popleft()
            if self.chance(0.02) and not self.are_through:
                return  # not taken, and nobody says so
            if first > self.received[name] + 1:
                self.ack(name, again=True)
            elif last > self.received[name]:
                self.received[name] = last
                self.taken.append((name, last))
        if self.taken and self.chance(0.6):
            name, last = self.taken.popleft()
            self.stored[name] = max(self.stored[name], last)
            if self.chance(0.9):
                self.ack(name)

    def ack(self, name, again=False):
        said = self.link.ack(name, self.stored[name], self.received[name], again, self.now)
        assert not said.again
        self.confirmed[name] = max(self.confirmed[name], self.stored[name])

    def tidy(self):
        for ask in self.link.progress.asks(self.now):
            if ask.worker not in self.dead:
                self.cursor[ask.worker] = ask.received + 1
                self.confirmed[ask.worker] = ask.received
        for _, below in self.link.purges():
            self.stream = [entry for entry in self.stream if entry[0] >= below]
            self.link.stream.note_purged(None, below)

    def step(self):
        self.now += 0.01
        for act in (self.work, self.read, self.train):
            act()
        if self.chance(0.05):
            self.tidy()
        if self.chance(0.01):
            for name in self.names:
                self.ack(name)  # said again

    @property
    def are_through(self):
        return all(self.stored[name] == self.made[name] >= 40 for name in self.names[:-1])


@pytest.mark.parametrize("seed", range(30))
def test_nothing_that_the_stream_confirmed_is_lost_and_in_the_end_it_is_empty(seed):
    world = World(seed)
    for _ in range(100_000):
        world.step()
        if world.are_through and world.stored == world.made and not world.stream:
            break
    assert world.stored == world.made
    assert world.stream == []
