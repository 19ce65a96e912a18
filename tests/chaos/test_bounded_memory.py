"""The memory that server and worker use while the trainer is frozen."""

import time

import pytest
from chaos_rig import SMALL, counts, wait_for_checkpoint, wait_until


@pytest.mark.fault(
    "processes", "the trainer stands still for long", "the memory of server and worker is bounded"
)
@counts(short=0, zmq=60, tlspyo=30)
def test_memory_is_flat_while_the_trainer_stands_still(rigs, seed, figure, transport, count):
    """`count`: how often 10 MB of samples are produced after the outbox is full."""
    rig = rigs(transport)
    server = rig.server_part()
    trainer = rig.trainer_part()
    worker = rig.worker_part(1, outbox=SMALL, env={"ballast_bytes": 20_000, "period_s": 0.0025})
    wait_for_checkpoint(rig.place)
    trainer.freeze()

    def produce(size_bytes):
        """Wait until `size_bytes` more were produced; return how long it took."""
        enough = sum(rig.produced().values()) + size_bytes / 20_000
        return wait_until(
            lambda: sum(rig.produced().values()) > enough, 60 + count * 5, "the worker collects"
        )

    produce(4 * SMALL.max_bytes)  # the outbox is full
    # its link keeps data for the trainer in the server's memory until it is cut
    if transport == "tlspyo":
        time.sleep(7.0)
    before = {"server": server.rss_bytes(), "worker": worker.rss_bytes()}
    took_s = produce(count * 1e7)
    grown = {
        "server": server.rss_bytes() - before["server"],
        "worker": worker.rss_bytes() - before["worker"],
    }
    figure(
        f"{took_s:.0f} s and {count * 10} MB of samples with the trainer stopped: "
        + ", ".join(
            f"{name} {grown[name] / 1e6:+.1f} MB of {before[name] / 1e6:.0f}" for name in grown
        )
    )
    assert all(growth < 1.2e7 for growth in grown.values()), grown
