"""The worker is killed, at random: while it starts, collects and sends; the trainer as well."""

import random
import time

import pytest
from chaos_rig import counts, wait_for_checkpoint, wait_until

from tmrl_like.delivery.segments import incarnations_in
from tmrl_like.delivery.source import Source

ENV = {"period_s": 0.002, "ballast_bytes": 300}


@pytest.mark.fault(
    "processes", "a worker with a spool is killed", "all that its control loop had appended arrives, once"
)
@counts(short=3, zmq=200, tlspyo=60)
def test_a_killed_worker_with_a_folder_loses_nothing_that_it_had_appended(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    folder = rig.place.folder / "spool"
    rig.server()
    worker = rig.worker_part(1, spool=folder, env=ENV)
    trainer = None
    left = 0
    for kill in range(count):
        wait_until(lambda kill=kill: len(rig.appended()) > kill, 60, "the worker collects")
        time.sleep(rng.uniform(0.0, 0.6))
        if trainer is not None and kill % 5 == 1:
            trainer.restart()
        worker.kill()
        left += has_entries_left(folder / "w1")
        worker.start()
        trainer = trainer or rig.trainer_part()  # so that there is something to send at the first kill
    wait_until(lambda: len(rig.appended()) > count, 60, "the worker collects")
    wait_for_checkpoint(rig.place)
    trainer.kill()
    worker.kill()
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    rig.worker(1, spool=folder, env=ENV)
    wait_until(lambda: len(rig.produced()) > count + 1, 60, "the last worker collects")
    found = rig.settle(last)
    figure(f"{count} kills of the worker, {left} of them with entries that were not stored: {found}")
    assert found.exactly_once, str(found)
    assert left > 0


def has_entries_left(folder):
    """Whether any process left entries in a worker's folder that the trainer has not stored."""
    sources = [Source(folder, "w1", incarnation) for incarnation in incarnations_in(folder)]
    kept = [source.newest > source.stored for source in sources]
    for source in sources:
        source.close()
    return any(kept)
