"""The link of a worker is killed, or frozen, at random: while it starts, reads, makes packets and sends."""

import random
import time

import pytest
from chaos_rig import counts, link_of, wait_until

ENV = {"period_s": 0.002, "ballast_bytes": 300}


@pytest.mark.fault(
    "processes", "a worker's link process is killed", "the robot drives on; all that was appended arrives, once"
)
@counts(short=3, zmq=200, tlspyo=60)
def test_a_killed_link_loses_nothing_of_what_the_worker_had_appended(rigs, seed, figure, transport, count):
    rig, rng = rigs(transport), random.Random(seed)
    rig.server()
    trainer = rig.trainer()
    worker = rig.worker_part(1, env=ENV)
    rig.wait_for_samples(trainer)
    longest_s = 0.0
    for kill in range(count):
        wait_until(lambda: link_of(worker), 60, "there is a link")
        time.sleep(rng.uniform(0.0, 0.6))
        link, before = link_of(worker), sum(rig.appended().values())
        if kill % 5 == 4:
            link.suspend()
            time.sleep(rng.uniform(0.0, 0.3))
        link.kill()
        longest_s = max(
            longest_s, wait_until(lambda link=link: link_of(worker) not in (link, None), 60, "another link")
        )
        wait_until(lambda before=before: sum(rig.appended().values()) > before, 60, "the worker drives on")
    rig.wait_for_samples(trainer)
    worker.kill()  # its link sends what is left
    found = rig.settle(trainer)
    figure(f"{count} kills of the link, {longest_s:.2f} s at most until another one was there: {found}")
    assert found.exactly_once, str(found)
