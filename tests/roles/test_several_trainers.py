"""Several trainers at one server, and workers that come and go: each sample reaches one rank,
once.
"""

import threading
from collections import defaultdict

from tmrl_like.base.functional import partial
from tmrl_like.config import config_constants as cfg
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.session.ring import connect_to_one
from tmrl_like.testing.fakes import CountingEnv
from tmrl_like.trainer.trainer_link import TrainerLink
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m
from tmrl_like.wire.spaces import describe_spaces


class Taker(threading.Thread):
    """A rank that takes what comes to it, and notes it: worker process -> (episode, step) of its
    samples.
    """

    def __init__(self, house, number):
        super().__init__(daemon=True)
        env, keys = CountingEnv(), KeyFolder(cfg.KEYS_FOLDER)
        self.link = TrainerLink(
            connect_to_one(house.transport, [f"127.0.0.1:{house.port}"], "", keys),
            f"t{number}",
            describe_spaces(env.observation_space, env.action_space),
            rank=m.Rank(number, 2, 7),
        )
        self.taken = defaultdict(list)
        self.ended = threading.Event()
        self.start()

    def run(self):
        while not self.ended.is_set():
            deliveries = self.link.retrieve(0.02)
            for delivery in deliveries:
                self.taken[delivery.receipt[:2]] += [
                    tuple(sample.obs.tolist()) for sample in delivery.buffer.memory
                ]
            self.link.confirm(deliveries)
        self.link.close(0.5)

    def count(self, worker):
        """How many samples of a worker it has."""
        return sum(
            len(samples) for process, samples in list(self.taken.items()) if process[0] == worker
        )


def test_workers_that_come_and_go_lose_and_double_nothing(house, until):
    house.server()
    ranks, workers = [Taker(house, 0), Taker(house, 1)], {}

    def start(name):
        options = {"outbox": OutboxOptions(max_age_s=0.0), "name": name}
        workers[name] = house.worker(partial(CountingEnv, step_s=0.002), **options)
        house.start(workers[name].run, test_episode_interval=0)

    def taken_of(name):
        return ranks[m.share_of(name, 2)].count(name)

    for name in ("w1", "w2", "w3", "w4"):
        start(name)
    until(lambda: all(taken_of(name) > 100 for name in workers))
    for name in ("w1", "w3"):
        workers[name].close()
    start("w1")
    before = taken_of("w1")
    until(lambda: taken_of("w1") > before + 100)
    for number, rank in enumerate(ranks):
        rank.ended.set()
        rank.join(60)
        for (worker, _), samples in rank.taken.items():
            assert m.share_of(worker, 2) == number
            assert [11 * (episode - 1) + step for episode, step in samples] == list(
                range(len(samples))
            ), worker
