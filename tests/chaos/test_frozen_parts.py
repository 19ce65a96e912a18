"""A trainer or a worker that stands still for a while."""

import random
import time

from chaos_rig import SMALL, counts, wait_for_checkpoint

from tmrl_like.testing.chaos import audit

STANDS_STILL_S = 5.0
"""Long enough that a server gives the seat to the next, and not much longer."""


@counts(short=1, zmq=10, tlspyo=5)
def test_a_trainer_that_stands_still_costs_no_sample(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    rig.server()
    for number in (1, 2):
        rig.worker(number)
    part = rig.trainer_part()
    wait_for_checkpoint(rig.place)
    for _ in range(count):
        time.sleep(rng.uniform(0.0, 2.0))
        part.freeze()
        time.sleep(STANDS_STILL_S + rng.uniform(-0.5, 1.0))
        part.thaw()
        wait_for_checkpoint(rig.place)
    assert part.alive
    part.kill()
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    rig.wait_for_samples(last)
    found = rig.settle(last)
    figure(f"{count} times the trainer stood still for 5 s: {found}")
    assert found.exactly_once, str(found)


@counts(short=1, zmq=10, tlspyo=5)
def test_a_worker_that_stands_still_costs_no_sample(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    rig.server()
    trainer = rig.trainer()
    part = rig.worker_part(1)
    for _ in range(count):
        rig.wait_for_samples(trainer)
        time.sleep(rng.uniform(0.0, 2.0))
        part.freeze()
        time.sleep(STANDS_STILL_S + rng.uniform(-0.5, 1.0))
        part.thaw()
    rig.wait_for_samples(trainer, 200)
    assert part.alive
    part.kill()
    found = audit(trainer.training.memory.rows(), rig.produced())
    figure(f"{count} times the worker stood still for 5 s: {found}")
    assert found.lost == found.lost_at_end, f"what was on its way when it was killed may be lost, nothing else: {found}"
    assert found.lost_at_end < 100
    assert found.doubled == found.out_of_order == 0, str(found)


@counts(short=5, zmq=60, tlspyo=30)
def test_memory_is_flat_while_the_trainer_stands_still(rigs, seed, figure, transport, count):
    """`count`: seconds, after the outbox is full."""
    rig = rigs(transport)
    server = rig.server_part()
    trainer = rig.trainer_part()
    worker = rig.worker_part(1, outbox=SMALL, env={"ballast_bytes": 20_000, "period_s": 0.005})  # 4 MB/s
    wait_for_checkpoint(rig.place)
    trainer.freeze()
    time.sleep(8.0)  # the outbox is full, and the server has freed the seat
    before = {"server": server.rss_bytes(), "worker": worker.rss_bytes()}
    steps = sum(rig.produced().values())
    time.sleep(count)
    grown = {"server": server.rss_bytes() - before["server"], "worker": worker.rss_bytes() - before["worker"]}
    made = (sum(rig.produced().values()) - steps) * 20_000
    figure(
        f"{count} s and {made / 1e6:.0f} MB of samples with the trainer stopped: "
        + ", ".join(f"{name} {grown[name] / 1e6:+.1f} MB of {before[name] / 1e6:.0f}" for name in grown)
    )
    assert made > count * 1e6
    assert all(growth < 8e6 for growth in grown.values()), grown
