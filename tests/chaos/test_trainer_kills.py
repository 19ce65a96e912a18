"""The trainer is killed at random: while it starts, resumes, trains or writes its checkpoint."""

import random
import time

import pytest
from chaos_rig import all_at_once, counts, wait_for_checkpoint, wait_until

PIPELINES = 5


@pytest.mark.fault(
    "processes",
    "the trainer is killed",
    "what it acknowledged as stored is there again at the next start, once",
)
@counts(short=0, zmq=200, tlspyo=60)
def test_a_killed_trainer_costs_no_sample(rigs, seed, figure, transport, count):
    pipelines = min(PIPELINES, count)
    results = []

    def run(rig, seed):
        results.append(kill_trainers(rig, random.Random(seed), count // pipelines))

    many = [rigs(transport) for _ in range(pipelines)]
    all_at_once(*[lambda i=i: run(many[i], seed + i) for i in range(pipelines)])
    figure(f"{count} kills of the trainer: {' / '.join(map(str, results))}")
    assert all(found.exactly_once for found in results), results


def kill_trainers(rig, rng, count):
    """Kill trainers; return the audit of the last one's memory."""
    rig.server()
    for number in (1, 2):
        rig.worker(number)
    trainer = rig.trainer_part()
    wait_for_checkpoint(rig.place)
    for _ in range(count):
        if rng.random() < 0.7:
            # a killed trainer's seat is taken over after 3 s
            time.sleep(rng.uniform(0.0, 8.0))
        else:
            wait_until(
                lambda: list(rig.place.checkpoint.glob(".*.tmp")),
                20,
                "a checkpoint is being written",
                every_s=0.0002,
            )
        trainer.kill()
        trainer.start()
    wait_for_checkpoint(rig.place)
    return rig.settle(rig.succeed(trainer))
