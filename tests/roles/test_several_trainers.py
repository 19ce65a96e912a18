"""Several trainers at one server, and workers that come and go: each sample reaches one rank, once."""

import contextlib
import threading
from collections import defaultdict

import pytest

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.errors import RefusedError
from tmrl_like.session.ring import connect_to_one
from tmrl_like.testing.fakes import CountingEnv
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m
from tmrl_like.wire.spaces import describe_spaces

SOON = OutboxOptions(max_age_s=0.0)
STEADY = partial(CountingEnv, step_s=0.002)


class Taker(threading.Thread):
    """A rank that takes what comes to it, and notes it: stream of a worker process -> (episode, step)."""

    def __init__(self, house, number, size=2, name=None, run=""):
        super().__init__(daemon=True)
        from tmrl_like.config import config_constants as cfg

        env = CountingEnv()
        keys = KeyFolder(cfg.KEYS_FOLDER)
        self.link = TrainerLink(
            connect_to_one(house.transport, [f"127.0.0.1:{house.port}"], "", keys),
            name or f"t{number}",
            describe_spaces(env.observation_space, env.action_space),
            Receiver(run=run),
            rank=m.ALONE if size == 1 else m.Rank(number, size, 7),
        )
        self.taken = defaultdict(list)
        self.ended = threading.Event()
        self.start()

    def run(self):
        with contextlib.suppress(RefusedError):
            self.take()

    def take(self):
        while not self.ended.is_set():
            deliveries = self.link.retrieve(0.02)
            for delivery in deliveries:
                process = delivery.receipt[:2]
                self.taken[process] += [tuple(sample.obs.tolist()) for sample in delivery.buffer.memory]
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


def number_of(sample):
    """Of one of CountingEnv's, (episode, step), from 0 on."""
    return int(11 * (sample[0] - 1) + sample[1])


def in_order(samples):
    """Whether these are CountingEnv's first samples, without a gap."""
    return [number_of(sample) for sample in samples] == list(range(len(samples)))


def test_workers_that_come_and_go_lose_and_double_nothing(house, takers, until):
    ranks, workers = [takers(0), takers(1)], {}

    def start(number):
        workers[number] = house.worker(STEADY, outbox=SOON, name=f"w{number}")
        house.start(workers[number].run, test_episode_interval=0)

    for number in (1, 2, 3, 4):
        start(number)
    until(lambda: all(taken_of(f"w{n}", ranks[m.share_of(f"w{n}", 2)]) > 100 for n in workers))
    for number in (1, 3):
        workers[number].close()
    start(1)
    before = taken_of("w1", ranks[m.share_of("w1", 2)])
    until(lambda: taken_of("w1", ranks[m.share_of("w1", 2)]) > before + 100)
    for number, rank in enumerate(ranks):
        rank.end()
        for (worker, _), samples in rank.taken.items():
            assert m.share_of(worker, 2) == number
            assert in_order(samples), worker


def test_a_frozen_trainer_wakes_up_behind_its_successor_and_does_no_harm(house, takers, until):
    worker = house.worker(STEADY, outbox=SOON, name="a")
    house.start(worker.run, test_episode_interval=0)
    frozen = takers(0, size=1, name="frozen", run="5eed")
    until(lambda: taken_of("a", frozen) > 20)
    tick, is_frozen, is_awake = frozen.link.on_tick, threading.Event(), threading.Event()

    def freeze(*arguments):
        is_frozen.set()
        is_awake.wait(60)
        return tick(*arguments)

    frozen.link.on_tick = freeze
    assert is_frozen.wait(60)
    successor = takers(0, size=1, name="successor", run="5eed")
    until(lambda: taken_of("a", successor) > 20)
    assert not frozen.link.session.failed
    is_awake.set()
    until(lambda: frozen.link.session.failed)
    with pytest.raises(RefusedError, match="another process goes on with this trainer's run"):
        frozen.link.session.check()
    before = taken_of("a", successor)
    until(lambda: taken_of("a", successor) > before + 50)
    successor.end()
    (process,) = successor.taken
    taken = [number_of(sample) for sample in successor.taken[process]]
    assert taken == list(range(taken[0], taken[0] + len(taken)))
    assert taken[0] <= len(frozen.taken[process])
