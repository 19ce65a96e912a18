"""The worker is killed, at random: while it starts, collects, writes its spool and sends; the trainer as well."""

import random
import time
from pathlib import Path

from chaos_rig import Rig, counts, wait_for_checkpoint, wait_until

from tmrl_like.networking.spool import packets_in
from tmrl_like.testing.chaos import audit
from tmrl_like.wire.packet import decode_body

Row = tuple[int, ...]
ENV = {"period_s": 0.002, "ballast_bytes": 300}


@counts(short=3, zmq=200, tlspyo=60)
def test_what_a_killed_worker_had_spooled_arrives_exactly_once(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    folder = rig.place.folder / "spool"
    rig.server()
    worker = rig.worker_part(1, spool_dir=folder, env=ENV)
    wait_until(lambda: folder.exists() and spooled_in(folder), 20, "the worker spools")
    trainer = None
    spooled: set[Row] = set()
    left = 0
    for kill in range(count):
        wait_until(lambda kill=kill: len(rig.produced()) > kill, 20, "the worker collects")
        time.sleep(rng.uniform(0.0, 0.6))
        if trainer is not None and kill % 5 == 1:
            trainer.restart()
        worker.kill()
        rows = spooled_in(folder)
        left += len(rows)
        spooled.update(rows)
        assert len(rows) == len(set(rows))
        worker.start()
        trainer = trainer or rig.trainer_part()  # so that there is something in the spool at the first kill
    wait_for_checkpoint(rig.place)
    trainer.kill()
    worker.kill()
    spooled.update(spooled_in(folder))
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    incarnations = len(rig.produced())
    successor = rig.worker(1, spool_dir=folder, env=ENV)
    wait_until(lambda: len(rig.produced()) > incarnations, 20, "the last worker collects")
    held = lambda: {tuple(map(int, row)) for row in last.training.memory.rows()}  # noqa: E731
    wait_until(lambda: spooled <= held(), 60, "what was spooled arrives")
    found = settled(rig, last, successor)
    figure(f"{count} kills of the worker, {left} samples left in the spool: {found}")
    assert found.doubled == found.out_of_order == 0
    assert found.lost == found.lost_at_end, "a sample is missing before one that is there"
    assert spooled <= held()
    assert left > 0


def spooled_in(folder: Path) -> list[Row]:
    """(worker, incarnation, number) of the samples in the spool of a worker that does not run."""
    packets = (packet for path in sorted(folder.iterdir()) for packet in packets_in(path))
    blocks = [decode_body(header, body) for header, body in packets if header.samples]
    return [tuple(map(int, sample.obs)) for block in blocks for sample in block.samples()]


def settled(rig: Rig, trainer, worker):
    """The audit when all that the last worker produced is in the memory."""
    worker.stop()
    wait_until(lambda: worker._outbox.unacknowledged_samples() == 0 or not worker._outbox.pending(), 20, "all is sent")
    newest = max(rig.produced())
    whole = lambda: (trainer.training.memory.rows()[:, 1] == newest[1]).sum() >= rig.produced()[newest]  # noqa: E731
    wait_until(whole, 20, "what the last worker produced arrives")
    time.sleep(0.3)  # what would come twice
    return audit(trainer.training.memory.rows(), rig.produced())
