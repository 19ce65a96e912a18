"""The trainer is killed, at random: while it starts, resumes, trains and writes its checkpoint."""

import random
import time

from chaos_rig import Rig, all_at_once, checkpoint_of, counts, wait_for_checkpoint

from tmrl_like.testing.chaos import Audit

PIPELINES = 5


@counts(short=2, zmq=200, tlspyo=60)
def test_a_killed_trainer_costs_no_sample(rigs, seed, figure, transport, count):
    pipelines = min(PIPELINES, count)
    results: list[tuple[int, Audit]] = []

    def run(rig: Rig, seed: int) -> None:
        results.append(kill_trainers(rig, random.Random(seed), count // pipelines))

    many = [rigs(transport) for _ in range(pipelines)]
    all_at_once(*[lambda i=i: run(many[i], seed + i) for i in range(pipelines)])
    checkpoints = sum(done for done, _ in results)
    kept = " / ".join(str(found) for _, found in results)
    figure(f"{count} kills of the trainer, {checkpoints} after a new checkpoint: {kept}")
    assert all(found.exactly_once for _, found in results), results
    assert checkpoints > 0 or count <= pipelines


def kill_trainers(rig: Rig, rng: random.Random, count: int) -> tuple[int, Audit]:
    """Returns how many of the killed had written a checkpoint, and what the last one's memory holds."""
    rig.server()
    for number in (1, 2):
        rig.worker(number)
    trainer = rig.trainer_part()
    wait_for_checkpoint(rig.place)
    with_checkpoint = 0
    for _ in range(count):
        before = checkpoint_of(rig.place)
        time.sleep(rng.uniform(0.0, 8.0 if count > 1 else 3.0))  # a killed trainer's seat is taken over after 3 s
        with_checkpoint += checkpoint_of(rig.place) != before
        trainer.restart()
    wait_for_checkpoint(rig.place)
    trainer.kill()
    last = rig.trainer(checkpoint_path=rig.place.checkpoint)
    rig.wait_for_samples(last)
    return with_checkpoint, rig.settle(last)
