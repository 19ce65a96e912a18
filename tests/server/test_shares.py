"""How the relay gives workers to several trainers that learn as one, by their names; without threads or sockets."""

import pytest
from relay_kit import FakeLink, frame, give, hello, packet

from tmrl_like.server.relay import Relay
from tmrl_like.wire import messages as m


class Group:
    """A relay with the trainers of a group."""

    def __init__(self, size=2, group=7):
        self.link = FakeLink()
        self.relay = Relay(self.link)
        self.size, self.group = size, group

    def rank(self, number, now=0.0, session=None):
        say = hello("trainer", f"t{number}", session or 100 + number)
        say.rank = m.Rank(number, self.size, self.group)
        give(self.relay, b"t%d" % number, say, now=now)

    def worker(self, number):
        give(self.relay, b"w%d" % number, hello(name=f"w{number}", session=number))

    def who_gets(self, worker):
        """The ranks that this worker's next packet goes to."""
        before = [len(self.link.to(b"t%d" % n, m.SamplePacket)) for n in range(self.size)]
        give(self.relay, b"w%d" % worker, packet(f"w{worker}", worker))
        return [n for n in range(self.size) if len(self.link.to(b"t%d" % n, m.SamplePacket)) > before[n]]


def share(worker, size=2):
    return m.share_of(f"w{worker}", size)


@pytest.fixture
def group():
    made = Group()
    made.rank(0)
    made.rank(1)
    return made


def feed_of(group, worker):
    return group.link.to(b"w%d" % worker, m.Welcome)[-1].feed


@pytest.mark.parametrize("size", [2, 3, 5, 24])
def test_numbered_workers_take_turns(size):
    group = Group(size)
    for number in range(size):
        group.rank(number)
    for worker in range(1, size + 1):
        group.worker(worker)
    shares = [group.who_gets(worker) for worker in range(1, size + 1)]
    assert shares == [[share(worker, size)] for worker in range(1, size + 1)]
    assert sorted(shares) == [[rank] for rank in range(size)]


def test_a_share_is_the_same_in_every_process_and_version():
    names = ("worker-1", "worker-2", "worker-18", "arm", "x" * m.MAX_NAME, "9" * m.MAX_NAME, "")
    assert [m.share_of(name, 16) for name in names] == [8, 9, 9, 15, 1, 1, 2]


def test_a_worker_stays_with_its_rank_whoever_comes_and_goes(group):
    for number in (1, 2, 3, 4):
        group.worker(number)
    for number in (1, 3):
        give(group.relay, b"w%d" % number, m.Bye())
    assert [group.who_gets(number) for number in (2, 4)] == [[share(2)], [share(4)]]


def test_without_its_rank_a_worker_keeps_its_samples_and_the_others_go_on(group):
    group.worker(1)
    group.worker(2)
    before = feed_of(group, 2), feed_of(group, 1)
    give(group.relay, b"t%d" % share(2), m.Bye())
    assert (feed_of(group, 2), group.who_gets(2)) == (0, [])
    assert (feed_of(group, 1), group.who_gets(1)) == (before[1], [share(1)])
    group.rank(share(2))
    assert feed_of(group, 2) not in (0, before[0])  # it sends again what is not stored
    assert feed_of(group, 1) == before[1]
    assert group.who_gets(2) == [share(2)]


def test_a_worker_is_heard_by_rank_0_and_by_its_own_rank():
    group = Group(size=3)
    for number in range(3):
        group.rank(number)
    worker = next(worker for worker in (1, 2, 3) if share(worker, 3) == 1)
    group.worker(worker)
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
        for number in (0, 1, 2):
            say = hello("trainer", f"u{number}", 200 + number)
            say.rank = m.Rank(number, 3, 8)
            give(group.relay, b"u%d" % number, say, now=now)
            assert "a trainer is connected already" in group.link.to(b"u%d" % number, m.Refusal)[0].reason
    assert sorted(seat.peer for seat in group.relay.ranks.values()) == [b"u0", b"u1", b"u2"]
    give(group.relay, b"w1", packet("w1", 1))
    assert len(group.link.to(b"u%d" % share(1, 3), m.SamplePacket)) == 1


def test_a_group_that_goes_on_with_the_run_takes_all_seats_at_once():
    group = Group()
    for number, (peer, rank) in enumerate(((b"t0", 0), (b"t1", 1), (b"u1", 1), (b"u0", 0))):
        say = hello("trainer", peer.decode(), 100 + number)
        say.rank, say.run, say.began_up_s = m.Rank(rank, 2, 7 if peer[:1] == b"t" else 8), "5eed", float(number)
        give(group.relay, peer, say)
    assert {rank: seat.peer for rank, seat in group.relay.ranks.items()} == {0: b"u0", 1: b"u1"}
    assert all(group.link.to(peer, m.Refusal)[-1].retry_after_s < 0 for peer in (b"t0", b"t1"))


def test_a_worker_hears_its_own_rank_alone(group):
    group.worker(1)
    ack = m.Ack("w1", 1, 4, 4)
    give(group.relay, b"t%d" % (1 - share(1)), ack)
    assert group.link.to(b"w1", m.Ack) == []
    give(group.relay, b"t%d" % share(1), ack)
    assert group.link.to(b"w1", m.Ack) == [ack]
