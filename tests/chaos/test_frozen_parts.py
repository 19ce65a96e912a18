"""A trainer or a worker that stands still for a while."""

import random
import time

import pytest
from chaos_rig import SMALL, all_at_once, counts, wait_for_checkpoint, wait_until
from numbered_samples import audit

STANDS_STILL_S = (4.5, 6.0)
"""Around the time after which the server gives the seat away."""


@pytest.mark.fault("processes", "a trainer or worker stands still (SIGSTOP)", "no sample is lost or doubled")
@counts(short=0, zmq=10, tlspyo=5)
def test_a_trainer_or_worker_that_stands_still_costs_no_sample(rigs, seed, figure, transport, count):
    cases = {"trainer": freeze_trainer, "worker": freeze_worker}
    rig_of = {role: rigs(transport) for role in cases}
    found = {}

    def run(role):
        found[role] = cases[role](rig_of[role], random.Random(seed), count)

    all_at_once(*[lambda role=role: run(role) for role in cases])
    for role, audited in found.items():
        figure(f"{count} times the {role} stood still for 5 s: {audited}")
    assert found["trainer"].exactly_once, str(found)
    assert found["worker"].doubled == found["worker"].out_of_order == [], str(found)
    assert len(found["worker"].lost) == found["worker"].lost_at_end < 100, "lost otherwise than by its end"


def freeze_trainer(rig, rng, count):
    rig.server()
    for number in (1, 2):
        rig.worker(number)
    part = rig.trainer_part()
    wait_for_checkpoint(rig.place)
    for _ in range(count):
        time.sleep(rng.uniform(0.0, 2.0))
        part.freeze()
        time.sleep(rng.uniform(*STANDS_STILL_S))
        part.thaw()
        wait_for_checkpoint(rig.place)
    assert part.alive
    return rig.settle(rig.succeed(part))


def freeze_worker(rig, rng, count):
    rig.server()
    trainer = rig.trainer()
    part = rig.worker_part(1)
    for _ in range(count):
        rig.wait_for_samples(trainer)
        time.sleep(rng.uniform(0.0, 2.0))
        part.freeze()
        time.sleep(rng.uniform(*STANDS_STILL_S))
        part.thaw()
    rig.wait_for_samples(trainer, 200)
    assert part.alive
    part.kill()
    time.sleep(0.5)
    return audit(trainer.training.memory.rows(), rig.produced())


@pytest.mark.fault("processes", "the trainer stands still for long", "the memory of server and worker is bounded")
@counts(short=1, zmq=60, tlspyo=30)
def test_memory_is_flat_while_the_trainer_stands_still(rigs, seed, figure, transport, count):
    """`count`: times 10 MB of samples, after the outbox is full."""
    rig = rigs(transport)
    server = rig.server_part()
    trainer = rig.trainer_part()
    worker = rig.worker_part(1, outbox=SMALL, env={"ballast_bytes": 20_000, "period_s": 0.0025})
    wait_for_checkpoint(rig.place)
    trainer.freeze()

    def produce(size_bytes):
        """Wait until as much was produced; returns how long it took."""
        enough = sum(rig.produced().values()) + size_bytes / 20_000
        return wait_until(lambda: sum(rig.produced().values()) > enough, 60 + count * 5, "the worker collects")

    produce(4 * SMALL.max_bytes)  # the outbox is full
    if transport == "tlspyo":  # its link keeps in the server's memory what goes to the trainer, until it is cut
        time.sleep(7.0)
    before = {"server": server.rss_bytes(), "worker": worker.rss_bytes()}
    took_s = produce(count * 1e7)
    grown = {"server": server.rss_bytes() - before["server"], "worker": worker.rss_bytes() - before["worker"]}
    figure(
        f"{took_s:.0f} s and {count * 10} MB of samples with the trainer stopped: "
        + ", ".join(f"{name} {grown[name] / 1e6:+.1f} MB of {before[name] / 1e6:.0f}" for name in grown)
    )
    assert all(growth < 1.2e7 for growth in grown.values()), grown
