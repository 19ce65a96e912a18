"""Faults of all kinds on one pipeline, several at a time."""

import contextlib
import logging
import math
import random
import time

import psutil
import pytest
from chaos_rig import (
    all_at_once,
    counts,
    link_of,
    wait_for_checkpoint,
    wait_until,
)

WORKERS = (1, 2, 3)

log = logging.getLogger(__name__)


class Pipeline:
    """A trainer and workers with spools, each behind its own `LinkProxy`, and the faults that hit
    them.

    A frozen or damaged link stays so until `mend`; a killed part restarts at once.
    """

    def __init__(self, rig):
        self.rig = rig
        self.spool = rig.place.folder / "spool"
        self.links = [rig.proxy() for _ in range(1 + len(WORKERS))]
        self.server, self.trainer = rig.server_part(), rig.trainer_part(port=self.links[0].port)
        self.workers = {
            n: rig.worker_part(n, port=self.links[n].port, spool=self.spool) for n in WORKERS
        }
        # number of lives of each worker before its present one
        self._before = dict.fromkeys(WORKERS, 0)

    def _lives(self, number):
        return {life for life in self.rig.produced() if life[0] == number}

    def _has_appended(self, number):
        lives = self._lives(number)
        is_new = len(lives) > self._before[number]
        return not self.workers[number].alive or (is_new and lives <= self.rig.appended().keys())

    def end_worker(self, number):
        """Kill a worker, but only after it has appended a sample: otherwise its progress would be
        unknown.
        """
        wait_until(lambda: self._has_appended(number), 60, f"worker {number} appends")
        self.workers[number].kill()
        self._before[number] = len(self._lives(number))

    def revive(self, part):
        """Restart a part that has ended: when its link broke every handshake, it took the server
        for a wrong one.
        """
        if not part.alive:
            part.start()

    def kill_worker(self, rng):
        number = rng.choice(WORKERS)
        self.end_worker(number)
        self.workers[number].start()

    def kill_link_process(self, rng):
        link = link_of(self.workers[rng.choice(WORKERS)])
        with contextlib.suppress(psutil.Error):
            if link is not None:
                link.kill()

    def kill_server(self, rng):
        self.server.restart()

    def kill_trainer(self, rng):
        self.trainer.restart()

    def stop_part(self, rng):
        part = rng.choice([self.trainer, *self.workers.values()])
        self.revive(part)
        part.freeze()
        time.sleep(log_uniform(rng, 0.1, 6.0))  # the server gives a seat away after 5 s
        part.thaw()

    def cut_link(self, rng):
        rng.choice(self.links).cut()

    def freeze_link(self, rng):
        rng.choice(self.links).freeze()

    def damage_link(self, rng):
        rng.choice(self.links).corrupt(log_uniform(rng, 500, 50_000), rng.randrange(99))

    def mend(self, rng=None):
        for link in self.links:
            link.thaw()
            link.corrupt(math.inf)

    def settle(self):
        """Kill trainer and workers, start successors that take over what was left and stored, and
        return the audit.
        """
        self.mend()
        for part in (self.trainer, *self.workers.values()):
            self.revive(part)
        wait_for_checkpoint(self.rig.place)
        all_at_once(*[lambda number=number: self.end_worker(number) for number in WORKERS])
        for number in WORKERS:
            self.rig.worker(number, spool=self.spool)
        return self.rig.settle(self.rig.succeed(self.trainer, within_s=60.0))


def log_uniform(rng, low, high):
    """Draw a log-uniform number: as many between 0.1 and 1 as between 1 and 10."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


@pytest.mark.fault(
    "processes", "all of it at once, at random", "no sample is lost, doubled or out of order"
)
@pytest.mark.fault(
    "processes", "the server is killed", "no sample is lost, doubled or out of order"
)
@pytest.mark.fault(
    "processes",
    "the trainer is killed",
    "what it acknowledged as stored is there again at the next start, once",
)
@pytest.mark.fault(
    "processes",
    "a worker with a spool is killed",
    "all that its control loop had appended arrives, once",
)
@pytest.mark.fault(
    "processes",
    "a worker's link process is killed",
    "the robot drives on; all that was appended arrives, once",
)
@pytest.mark.fault(
    "processes", "a trainer or worker stands still (SIGSTOP)", "no sample is lost or doubled"
)
@pytest.mark.fault(
    "network", "a worker's link freezes, then breaks", "no sample is lost or doubled"
)
@pytest.mark.fault(
    "network", "the trainer's link freezes, then breaks", "no sample is lost or doubled"
)
@pytest.mark.fault("network", "bytes are changed on their way", "no sample is lost; the link heals")
@counts(short=8, zmq=400, tlspyo=200)
def test_everything_at_once_costs_no_sample(rigs, seed, figure, transport, count):
    pipeline = Pipeline(rigs(transport))
    wait_for_checkpoint(pipeline.rig.place)
    troubles = [
        pipeline.kill_worker,
        pipeline.kill_link_process,
        pipeline.kill_server,
        pipeline.kill_trainer,
        pipeline.stop_part,
        pipeline.cut_link,
        pipeline.freeze_link,
        pipeline.damage_link,
        *[pipeline.mend] * 2,
    ]
    rng = random.Random(seed)
    for _ in range(count):
        time.sleep(log_uniform(rng, 0.05, 5.0 if count > 10 else 1.0))
        happens = rng.choice(troubles)
        log.info("%s", happens.__name__)
        happens(rng)
    found = pipeline.settle()
    figure(f"{count} troubles of all kinds: {found}")
    assert found.exactly_once, str(found)
