"""The trainer is killed, at random: while it starts, resumes, trains and writes its checkpoint."""

import random
import time
from dataclasses import dataclass

import pytest
from chaos_rig import all_at_once, checkpoint_of, counts, wait_for_checkpoint, wait_until

PIPELINES = 5


@dataclass
class Killed:
    """Trainers that were killed at moments that matter."""

    after_a_checkpoint: int = 0
    while_writing: int = 0


@pytest.mark.fault(
    "processes",
    "the trainer is killed",
    "what it acknowledged as stored is there again at the next start, once",
)
@counts(short=2, zmq=200, tlspyo=60)
def test_a_killed_trainer_costs_no_sample(rigs, seed, figure, transport, count):
    pipelines = min(PIPELINES, count)
    results = []

    def run(rig, seed):
        results.append(kill_trainers(rig, random.Random(seed), count // pipelines))

    many = [rigs(transport) for _ in range(pipelines)]
    all_at_once(*[lambda i=i: run(many[i], seed + i) for i in range(pipelines)])
    checkpoints = sum(killed.after_a_checkpoint for killed, _ in results)
    writing = sum(killed.while_writing for killed, _ in results)
    kept = " / ".join(str(found) for _, found in results)
    figure(
        f"{count} kills of the trainer, {checkpoints} after a new checkpoint, {writing} while "
        f"writing one: {kept}"
    )
    assert all(found.exactly_once for _, found in results), results
    assert min(checkpoints, writing) > 0 or count <= pipelines


def kill_trainers(rig, rng, count):
    """Returns at which moments, and what the last one's memory holds."""
    rig.server()
    for number in (1, 2):
        rig.worker(number)
    trainer = rig.trainer_part()
    wait_for_checkpoint(rig.place)
    killed = Killed()
    for _ in range(count):
        before = checkpoint_of(rig.place)
        if rng.random() < 0.7:
            # a killed trainer's seat is taken over after 3 s
            time.sleep(rng.uniform(0.0, 8.0 if count > 1 else 1.5))
        else:
            wait_until(
                lambda: drafts(rig.place), 20, "a checkpoint is being written", every_s=0.0002
            )
        trainer.kill()
        killed.after_a_checkpoint += checkpoint_of(rig.place) != before
        killed.while_writing += bool(drafts(rig.place))
        trainer.start()
    wait_for_checkpoint(rig.place)
    return killed, rig.settle(rig.succeed(trainer))


def drafts(place):
    """Files of a checkpoint that is being written."""
    return list(place.checkpoint.glob(".*.tmp"))
