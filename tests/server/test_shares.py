"""The relay's assignment of workers, by name, to several trainers that learn as one, without
threads or sockets.
"""

import pytest
from kit.relays import Scene, frame

from tmrl_like.wire import messages as m


class Group:
    """A relay with the trainers of a group."""

    def __init__(self, size=2):
        self.scene, self.size = Scene(), size
        self.ranks = [self.rank(number) for number in range(size)]

    def rank(self, number):
        return self.scene.trainer(f"t{number}", 100 + number, rank=m.Rank(number, self.size, 7))

    def worker(self, number):
        return self.scene.worker(f"w{number}", number)

    def rank_of(self, worker):
        return self.ranks[m.share_of(worker.name, self.size)]

    def takers_of(self, worker):
        """Send a packet of a worker, and return the ranks that receive it."""
        for rank in self.ranks:
            rank.got.clear()
        worker.send(1)
        return [rank for rank in self.ranks if rank.entries]


@pytest.fixture
def group():
    return Group()


def test_a_share_is_the_same_in_every_process_and_version():
    names = ("worker-1", "worker-18", "arm", "9" * m.MAX_NAME, "")
    assert [m.share_of(name, 16) for name in names] == [8, 9, 15, 1, 2]


def test_without_its_rank_a_worker_keeps_its_samples_and_the_others_go_on(group):
    other, worker = group.worker(1), group.worker(2)
    before, before_other = worker.feed, other.feed
    number = group.ranks.index(group.rank_of(worker))
    group.ranks[number].say(m.Bye())
    assert (worker.feed, group.takers_of(worker)) == (0, [])
    assert group.takers_of(other) == [group.rank_of(other)]
    group.ranks[number] = group.rank(number)
    assert worker.feed not in (0, before), "it sends again what is not stored"
    assert other.feed == before_other
    assert group.takers_of(worker) == [group.ranks[number]]


def test_a_worker_is_heard_by_rank_0_and_its_own_rank_and_hears_its_own_alone():
    group = Group(size=3)
    worker = next(w for w in map(group.worker, (1, 2, 3)) if group.rank_of(w) is group.ranks[1])
    worker.say(m.Beat(worker=worker.name))
    assert [len(rank.heard(m.Beat)) for rank in group.ranks] == [1, 1, 0]
    answers = [m.Ack(worker.name, 1, number, number) for number in range(3)]
    for rank, answer in zip(group.ranks, answers, strict=True):
        rank.say(answer)
    assert worker.heard(m.Ack) == [answers[1]]


def test_only_rank_0_publishes(group):
    worker = group.worker(1)
    group.ranks[0].say(frame())
    assert "rank 0 publishes" in group.ranks[1].say(frame(2)).refusal.reason
    assert worker.policies == [1]


def test_a_group_that_goes_on_with_the_run_takes_all_seats_at_once(scene):
    first, second, *successors = (
        scene.trainer(f"t{began_up_s}", began_up_s, rank=rank, run="5eed", began_up_s=began_up_s)
        for began_up_s, rank in enumerate(
            (m.Rank(0, 2, 7), m.Rank(1, 2, 7), m.Rank(1, 2, 8), m.Rank(0, 2, 8)), start=100
        )
    )
    assert scene.ranks == dict(enumerate(reversed(successors)))
    assert all(peer.refusal.retry_after_s < 0 for peer in (first, second))
