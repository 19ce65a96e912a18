"""Bookkeeping of what a trainer reads and purges of an engine's stream, without a node."""

import pytest
from kit.allocations import peak_of
from kit.packets import INCARNATION, header

from tmrl_like.engine.backlog import Backlog
from tmrl_like.wire import messages as m


class Stream:
    """A stream and its reader, message by message."""

    def __init__(self):
        self.backlog, self.sequence = Backlog(), 0

    def read(self, first, last=None, worker="w", now=0.0, left=0, size=1000):
        self.sequence += 1
        self.backlog.add(header(first, last, worker), self.sequence, size, now)
        self.backlog.note(self.sequence, left)

    def ack(self, stored, worker="w", again=False):
        return self.backlog.on_ack(m.Ack(worker, INCARNATION, stored, stored, again))


@pytest.fixture
def stream():
    return Stream()


def test_what_is_stored_may_go_up_to_the_first_that_is_not(stream):
    stream.read(1, 2)
    stream.read(1, worker="v")
    stream.read(1, 3)
    stream.ack(1)
    assert stream.backlog.purge(0.0) is None, "half of it is"
    stream.ack(3)
    assert stream.backlog.purge(0.0) == 2
    assert stream.backlog.purge(0.0) is None
    stream.ack(1, worker="v")
    assert stream.backlog.purge(0.0) == 4


def test_a_stream_that_is_away_is_not_purged_since_its_numbers_may_be_other_messages_then(stream):
    stream.read(1)
    stream.ack(1)
    stream.backlog.begin()
    assert stream.backlog.purge(0.0) is None


def test_a_worker_sends_again_once_the_stream_is_nearly_read(stream):
    stream.read(5, left=10_000)
    assert not stream.ack(1, again=True).again
    stream.read(6, left=3)
    assert stream.ack(1, again=True).again
    assert not stream.ack(1).again


def test_what_the_trainer_does_not_take_is_read_again_while_more_of_it_is_stored_then_given_up(
    stream, caplog
):
    for stored, is_over in ((0, True), (4, True), (4, False)):
        stream.backlog.begin()
        stream.ack(stored, worker="dead")
        stream.read(5, 6, worker="dead", now=0.0)
        stream.read(1 + stream.sequence, now=19.0)
        stream.ack(stream.sequence)
        stream.backlog.purge(31.0)
        assert not stream.backlog.is_over, "what is stored was read but a little later"
        stream.read(1, now=30.0)
        stream.backlog.purge(31.0)
        assert not stream.backlog.is_over, "what is stored was so before it was read"
        stream.read(1 + stream.sequence, now=30.0)
        stream.ack(stream.sequence)
        below = stream.backlog.purge(31.0)
        assert stream.backlog.is_over == is_over
        assert below == (None if is_over else stream.sequence + 1)
    said = "entries 5 to 6 of worker dead are given up: the trainer does not take them"
    assert [record.message for record in caplog.records] == [said]


def test_what_is_left_of_a_stream_that_was_read_is_read_again_while_more_of_it_is_stored(stream):
    for stored, is_over in ((0, True), (1, True), (1, False)):
        stream.backlog.begin()
        stream.read(2, now=0.0, left=1)
        stream.ack(stored)
        stream.backlog.purge(61.0)
        assert not stream.backlog.is_over, "more can be read"
        stream.read(3, now=0.0)
        stream.backlog.purge(59.0)
        assert not stream.backlog.is_over, "it may be on its way"
        assert stream.backlog.purge(61.0) is None
        assert stream.backlog.is_over == is_over


def test_a_dismissed_process_holds_nothing_up(stream):
    stream.read(1, 9)
    stream.backlog.on_dismissal(m.Dismissal("w", INCARNATION, "it does not fit"))
    assert stream.backlog.purge(0.0) == 2


def test_no_more_is_read_than_a_window_of_what_may_be_on_its_way(stream):
    for entry in (1, 2, 3):
        assert stream.backlog.has_room(0.0)
        stream.read(entry, size=16 << 20)
    assert not stream.backlog.has_room(0.0)
    stream.ack(0, again=True)
    assert stream.backlog.has_room(0.0), "what comes behind a gap is not taken"
    stream.read(4, size=32 << 20)
    stream.ack(1)
    assert not stream.backlog.has_room(59.0)
    assert stream.backlog.has_room(61.0), "it was not taken"


def test_processes_without_end_take_no_memory_without_end(stream):
    def answer(incarnation):
        stream.backlog.on_ack(m.Ack("w", incarnation, 1, 1))
        stream.backlog.on_dismissal(m.Dismissal("v", incarnation, "no"))

    def many():
        for incarnation in range(30_000):
            answer(incarnation)

    assert peak_of(many)[1] < 5e6
    stream.read(1)
    stream.ack(1)
    assert stream.backlog.purge(0.0) == 2
