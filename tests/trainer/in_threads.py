"""Ranks as threads of one process, which communicate without `torch.distributed`."""

import threading
from concurrent.futures import ThreadPoolExecutor

from kit.trainings import Hears, training

from tmrl_like.errors import RankError
from tmrl_like.trainer.ranks import Alone


class ThreadRanks(Alone):
    """One rank of a group; `of` makes the whole group."""

    def __init__(self, rank, said, barrier):
        self.rank, self.size, self.group = rank, len(said), 7
        self._said, self._barrier = said, barrier

    @classmethod
    def of(cls, size):
        said, barrier = [None] * size, threading.Barrier(size, timeout=60)
        return [cls(rank, said, barrier) for rank in range(size)]

    def _exchange(self, what):
        try:
            self._barrier.wait()
            self._said[self.rank] = what
            self._barrier.wait()
            return list(self._said)
        except threading.BrokenBarrierError:
            raise RankError("another one is gone") from None

    def sum(self, *numbers):
        return [sum(column) for column in zip(*self._exchange(numbers), strict=True)]

    def gather(self, data):
        return self._exchange(data)


class LateRanks(ThreadRanks):
    """Ranks whose votes are sent with the next training step, as those of `Ranks` are."""

    _ballot = _late = None

    def vote(self, mine, may_be_late=False):
        late, self._late = self._late, None
        if late is None or not may_be_late:
            late = super().vote(mine)
        self._ballot = mine
        return late

    def check(self, agent, training_steps):
        self._late = super().vote(self._ballot)


def all_at_once(ranks, call):
    """Run `call(rank)` for each rank in its own thread; return what each returned or raised."""

    def run(rank):
        try:
            return call(rank)
        except BaseException as error:
            rank._barrier.abort()
            return error

    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(run, ranks))


def epochs_of(ranks, networks, should_stop=lambda one: False, make=training, **options):
    """Train each rank for an epoch on samples of its own network, or until `should_stop(training)`;
    return the trainings, with their `records`.
    """

    def train(rank):
        one, heard = make(**options), Hears()
        one.join(rank)
        one.run_epoch(networks[rank.rank], [heard], lambda: should_stop(one))
        one.records = heard.records
        return one

    return all_at_once(ranks, train)
