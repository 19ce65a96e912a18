"""How the relay deals workers to several trainers that learn as one, without threads or sockets."""

import pytest
from test_relay import FakeLink, frame, give, hello, packet

from tmrl_like.server.relay import Relay
from tmrl_like.wire import messages as m


class Group:
    """A relay with trainers that answer what they are asked; `has` is what they have stored."""

    def __init__(self, size=2, wants_all=False, group=7):
        self.link = FakeLink()
        self.relay = Relay(self.link)
        self.size, self.wants_all, self.group = size, wants_all, group
        self.has = [{} for _ in range(size)]

    def rank(self, number, now=0.0, session=None):
        rank = m.Rank(number, self.size, self.group, self.wants_all)
        say = hello("trainer", f"t{number}", session or 100 + number)
        say.rank = rank
        give(self.relay, b"t%d" % number, say, now=now)

    def worker(self, number):
        give(self.relay, b"w%d" % number, hello(name=f"w{number}", session=number))

    def asked(self, number, kind=(m.ReceiptsWanted, m.Takeover)):
        return self.link.to(b"t%d" % number, kind)

    def answer(self, number):
        """Answer what this rank was asked since the last time."""
        asked, self.link.sent = self.asked(number), [s for s in self.link.sent if s[0] != b"t%d" % number]
        for question in asked:
            receipts = ()
            if isinstance(question, m.ReceiptsWanted):
                receipts = tuple((i, self.has[number][i]) for i in question.incarnations if i in self.has[number])
            give(self.relay, b"t%d" % number, m.Receipts(question.worker, question.number, receipts))
        return asked

    def settle(self):
        for _ in range(4):  # questions, takeovers, and what was asked meanwhile
            for number in range(self.size):
                self.answer(number)

    def who_gets(self, worker):
        """The ranks that this worker's next packet goes to."""
        before = [len(self.link.to(b"t%d" % n, m.Bundle)) for n in range(self.size)]
        give(self.relay, b"w%d" % worker, packet(f"w{worker}", worker))
        return [n for n in range(self.size) if len(self.link.to(b"t%d" % n, m.Bundle)) > before[n]]


@pytest.fixture
def group():
    made = Group()
    made.rank(0)
    made.rank(1)
    return made


def feed_of(group, worker):
    return group.link.to(b"w%d" % worker, m.Welcome)[-1].feed


def test_each_worker_goes_to_the_rank_with_the_fewest(group):
    for number in (1, 2, 3, 4):
        group.worker(number)
    group.settle()
    assert [group.who_gets(number) for number in (1, 2, 3, 4)] == [[0], [1], [0], [1]]


def test_nothing_flows_before_the_other_ranks_have_said_what_they_have(group):
    group.worker(1)
    group.worker(2)
    assert feed_of(group, 1) == 0
    assert group.who_gets(1) == []
    group.has[1][1] = 5
    group.answer(1)
    assert group.who_gets(1) == []  # its own rank has not been told yet
    takeover = [t for t in group.asked(0, m.Takeover) if t.worker == "w1"][-1]
    assert takeover.receipts == ((1, 5),)
    group.settle()
    assert feed_of(group, 1) != 0
    assert group.who_gets(1) == [0]


def test_an_answer_to_an_earlier_question_counts_for_nothing(group):
    group.worker(1)
    group.worker(2)
    stale = group.asked(1, m.ReceiptsWanted)[-1]
    give(group.relay, b"w1", m.Bye())
    group.worker(1)
    group.worker(2)
    give(group.relay, b"t1", m.Receipts("w1", stale.number))
    assert group.who_gets(1) == []


def test_fewer_workers_than_ranks_feed_all_of_them(group):
    group.worker(1)
    group.settle()
    assert group.who_gets(1) == [0, 1]
    group.worker(2)
    group.settle()
    assert group.who_gets(1) == [0]
    assert group.who_gets(2) == [1]
    give(group.relay, b"w1", m.Bye())
    group.settle()
    assert group.who_gets(2) == [0, 1]


def test_of_samples_that_all_get_one_rank_counts_and_all_store(group):
    group.worker(1)
    takeovers = [group.asked(n, m.Takeover)[-1] for n in (0, 1)]
    assert [t.is_copy for t in takeovers] == [False, True]
    group.settle()
    give(group.relay, b"t0", m.Ack("w1", 1, 4, 6))
    assert group.link.to(b"w1", m.Ack) == []
    give(group.relay, b"t1", m.Ack("w1", 1, 3, 8))
    assert group.link.to(b"w1", m.Ack) == [m.Ack("w1", 1, 3, 6)]


def test_all_ranks_get_all_samples_where_they_ask_for_it():
    group = Group(wants_all=True)
    group.rank(0)
    group.rank(1)
    for number in (1, 2, 3):
        group.worker(number)
    group.settle()
    assert [group.who_gets(number) for number in (1, 2, 3)] == [[0, 1]] * 3


def test_shares_are_levelled_when_workers_leave(group):
    for number in range(1, 7):
        group.worker(number)
    group.settle()
    for number in (1, 3):
        give(group.relay, b"w%d" % number, m.Bye())
    group.settle()
    shares = [group.who_gets(number) for number in (2, 4, 5, 6)]
    assert sorted(shares) == [[0], [0], [1], [1]]


def test_a_worker_that_moves_is_told_to_send_again_what_is_not_stored(group):
    for number in (1, 2, 3, 4):
        group.worker(number)
    group.settle()
    before = feed_of(group, 4)
    group.has[1][4] = 9
    for number in (1, 3):
        give(group.relay, b"w%d" % number, m.Bye())
    assert group.who_gets(4) == []
    group.answer(1)
    (takeover,) = group.asked(0, m.Takeover)
    group.settle()
    assert (takeover.worker, takeover.receipts) == ("w4", ((4, 9),))
    assert feed_of(group, 4) not in (0, before)
    assert group.who_gets(4) == [0]


def test_a_rank_that_comes_back_is_asked_again(group):
    group.worker(1)
    group.worker(2)
    give(group.relay, b"t1", m.Bye())
    group.rank(1)
    group.settle()
    assert group.who_gets(1) == [0]
    assert group.who_gets(2) == [1]
    give(group.relay, b"t1", m.Bye())
    assert feed_of(group, 2) == 0
    assert group.who_gets(2) == []
    assert group.who_gets(1) == [0]
    group.rank(1)
    group.settle()
    assert group.who_gets(2) == [1]


def test_a_question_that_was_lost_is_asked_again(group):
    group.link.full = {b"t0", b"t1"}
    group.worker(1)
    group.worker(2)
    group.link.full = set()
    group.relay.flush()
    for now in (3.0, 6.0):
        for peer, role in ((b"t0", ""), (b"t1", ""), (b"w1", "w1"), (b"w2", "w2")):
            give(group.relay, peer, m.Beat(worker=role), now=now)
        group.relay.tick(now)
        group.settle()
    assert group.who_gets(1) == [0]


def test_a_worker_is_heard_by_rank_0_and_by_the_ranks_that_get_its_samples():
    group = Group(size=3)
    for number in range(3):
        group.rank(number)
    for worker in (1, 2, 3):
        group.worker(worker)
    group.settle()
    ranks = [rank for worker in (1, 2, 3) for rank in group.who_gets(worker)]
    assert sorted(ranks) == [0, 1, 2]
    worker = 1 + ranks.index(1)
    give(group.relay, b"w%d" % worker, m.Beat(worker=f"w{worker}", up_s=7.0))
    heard = [[beat.up_s for beat in group.link.to(b"t%d" % number, m.Beat)] for number in range(3)]
    assert heard == [[7.0], [7.0], []]


def test_only_rank_0_publishes(group):
    group.worker(1)
    give(group.relay, b"t0", frame())
    assert len(group.link.to(b"w1", m.PolicyFrame)) == 1
    give(group.relay, b"t1", frame(2))
    assert "rank 0 publishes" in group.link.to(b"t1", m.Refusal)[0].reason


def test_another_group_waits_until_this_one_is_silent(group):
    group.worker(1)
    for now in (1.0, 4.0):
        for number in (0, 1):
            say = hello("trainer", f"u{number}", 200 + number)
            say.rank = m.Rank(number, 2, 8)
            give(group.relay, b"u%d" % number, say, now=now)
            assert "a trainer is connected already" in group.link.to(b"u%d" % number, m.Refusal)[0].reason
    assert sorted(seat.peer for seat in group.relay.ranks.values()) == [b"u0", b"u1"]
    assert len(group.link.to(b"u1", m.Takeover)) == 1


def test_a_rank_that_lets_go_asks_for_nothing_more(group):
    group.worker(1)
    group.worker(2)
    group.settle()
    give(group.relay, b"t1", m.Ack("w1", 1, 4, 4, again=True))
    assert group.link.to(b"w1", m.Ack) == []
    give(group.relay, b"t1", m.Ack("w1", 1, 4, 4))
    assert group.link.to(b"w1", m.Ack) == [m.Ack("w1", 1, 4, 4)]
