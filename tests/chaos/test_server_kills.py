"""The server is killed at random under load."""

import contextlib
import random
import socket
import statistics
import time

import pytest
from chaos_rig import counts, wait_until

WORKERS = (1, 2, 3)


@pytest.mark.fault(
    "processes", "the server is killed", "no sample is lost, doubled or out of order"
)
@pytest.mark.fault(
    "processes",
    "the server is killed and started again",
    "traffic of all workers flows within 2 s of the start",
)
@counts(short=0, zmq=60, tlspyo=30)
def test_traffic_flows_again_within_two_seconds_of_a_restart(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    server = rig.server_part()
    trainer = rig.trainer()
    for number in WORKERS:
        rig.worker(number)
    took = []
    for _ in range(count):
        wait_until(
            lambda: seen_workers(trainer, 0) == set(WORKERS), 20, "every worker's samples arrive"
        )
        time.sleep(rng.uniform(0.1, 1.5))
        server.kill()
        time.sleep(rng.uniform(0.1, 3.0))
        before = rig.arrived(trainer)
        server.start()
        wait_until(lambda: listens(rig.place.port), 20, "the server listens")
        took.append(
            wait_until(
                lambda n=before: seen_workers(trainer, n) == set(WORKERS),
                20,
                "every worker's samples arrive",
            )
        )
    found = rig.settle(trainer)
    median, most = statistics.median(took), max(took)
    figure(
        f"{count} restarts: traffic of all again after {median:.2f} s (median), {most:.2f} s at "
        f"most; {found}"
    )
    assert found.exactly_once, str(found)
    assert most <= 2.0, took


def listens(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True


def seen_workers(trainer, start):
    """Return the workers whose samples came after the first `start` samples."""
    return set(trainer.training.memory.rows()[start:, 0].astype(int).tolist())
