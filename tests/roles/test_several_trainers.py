"""Several trainers at one server, and workers that come and go: each sample reaches one rank, or all, once."""

import threading
from collections import defaultdict

import pytest

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.testing.fakes import CountingEnv
from tmrl_like.trainer.link import TrainerLink
from tmrl_like.transport import KeyFolder, connect
from tmrl_like.wire import messages as m
from tmrl_like.wire.spaces import describe_spaces

SOON = OutboxOptions(max_age_s=0.0)
STEADY = partial(CountingEnv, step_s=0.002)


class Taker(threading.Thread):
    """A rank that takes what comes to it, and notes it: stream of a worker process -> (episode, step)."""

    def __init__(self, house, number, size=2, wants_all=False):
        super().__init__(daemon=True)
        from tmrl_like.config import config_constants as cfg

        env = CountingEnv()
        keys = KeyFolder(cfg.KEYS_FOLDER)
        self.link = TrainerLink(
            connect(house.transport, "127.0.0.1", house.port, keys, None),
            "here",
            f"t{number}",
            describe_spaces(env.observation_space, env.action_space),
            Receiver(),
            rank=m.Rank(number, size, 7, wants_all),
        )
        self.taken = defaultdict(list)
        self.copies = 0
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.is_set():
            deliveries = self.link.retrieve(0.02)
            for delivery in deliveries:
                process = delivery.receipt[:2]
                self.taken[process] += [tuple(sample.obs.tolist()) for sample in delivery.buffer.memory]
                self.copies += len(delivery.buffer) if delivery.is_copy else 0
            self.link.confirm(deliveries)

    def end(self):
        self.ended.set()
        self.join(10)
        self.link.close(0.5)


@pytest.fixture
def takers(house):
    house.server()
    made = []

    def make(number, **options):
        made.append(Taker(house, number, **options))
        return made[-1]

    yield make
    for taker in made:
        taker.end()


def taken_of(worker, rank):
    """How many samples of a worker a rank has."""
    return sum(len(samples) for process, samples in list(rank.taken.items()) if process[0] == worker)


def in_order(samples):
    """CountingEnv's first samples, without a gap: (episode, step)."""
    return [(float(1 + i // 11), float(i % 11)) for i in range(len(samples))]


def test_workers_that_come_and_go_lose_and_double_nothing(house, takers, until):
    workers = {}
    for name in ("a", "b", "c", "d", "e", "f"):
        workers[name] = house.worker(STEADY, outbox=SOON, name=name)
        house.start(workers[name].run, test_episode_interval=0)
        assert workers[name].wait_connected(60)
    ranks = [takers(0), takers(1)]
    for name in workers:
        until(lambda name=name: any(process[0] == name for rank in ranks for process in rank.taken))
    for name in ("a", "c", "e"):  # those of one rank: one of the others moves
        workers[name].close()
    left = ("b", "d", "f")
    before = {name: [taken_of(name, rank) for rank in ranks] for name in left}
    until(lambda: all(sum(taken_of(n, r) for r in ranks) > sum(before[n]) + 100 for n in left))
    moved = [n for n in left if all(taken_of(n, rank) > 0 for rank in ranks)]
    for rank in ranks:
        rank.end()
    assert len(moved) == 1
    for process in set().union(*(rank.taken for rank in ranks)):
        samples = sorted(ranks[0].taken[process] + ranks[1].taken[process])
        assert samples == in_order(samples), process


def test_where_all_get_all_one_counts_them(house, takers, until):
    ranks = [takers(n, wants_all=True) for n in range(2)]
    worker = house.worker(STEADY, outbox=SOON, name="a")
    house.start(worker.run, test_episode_interval=0)
    until(lambda: all(any(len(s) > 60 for s in list(rank.taken.values())) for rank in ranks))
    for rank in ranks:
        ((_, samples),) = rank.taken.items()
        samples = list(samples)
        assert samples == in_order(samples)
    assert ranks[0].copies == 0
    assert ranks[1].copies >= 60
