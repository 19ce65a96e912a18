"""A worker's samples do not fit the memory: other workers continue, and the loss of its samples is
reported.
"""

import numpy as np
import pytest
from kit.fakes import CountingEnv

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.errors import RefusedError
from tmrl_like.replay import ReplayMemory
from tmrl_like.transport import TransportOptions

ENV = partial(CountingEnv, step_s=0.002)
# so that no packet holds only a reset, which would be cast
SOON = OutboxOptions(max_age_s=0.0, min_samples=2)


def in_float64(act, obs, rew, terminated, truncated, info):
    return act, obs.astype(np.float64), rew, terminated, truncated, info


class Memory(ReplayMemory):
    """A memory that records whose samples it has, as WORKER/INCARNATION."""

    processes = frozenset()

    def append_buffer(self, buffer):
        super().append_buffer(buffer)
        self.processes |= {buffer.stream.rsplit("/", 2)[0]}


@pytest.mark.fault(
    "peers",
    "a worker's samples do not fit",
    "that worker is refused in one line; the others and the trainer go on",
)
def test_one_misconfigured_worker_ends_itself_and_not_the_trainer(inproc_house, until, caplog):
    server = inproc_house.server(limits=TransportOptions(silent_after_s=0.5))
    trainer = inproc_house.trainer(Memory, {"epochs": float("inf")})
    training = trainer.training
    inproc_house.start(trainer.run)
    good = inproc_house.worker(ENV, name="good", outbox=SOON)
    inproc_house.start(good.run)
    until(lambda: training.total_updates > 20)

    spool = {"name": "bad", "outbox": SOON, "spool": "~/spool"}
    bad = inproc_house.worker(ENV, sample_compressor=in_float64, **spool)
    with pytest.raises(
        RefusedError,
        match=r"obs began as float32 \(2,\) and is now float64 \(2,\)(.|\n)*start both",
    ):
        bad.run()
    until(lambda: server.workers() == ["good"])
    bad.close()

    successor = inproc_house.worker(ENV, **spool)
    inproc_house.start(successor.run)
    processes = {f"{w.name}/{w.loop.samples.incarnation}" for w in (good, successor)}
    until(lambda: training.memory.processes == processes)
    until(lambda: "an earlier process of this worker left on disk do not fit" in caplog.text)
    assert trainer.link.fleet()["rejected_workers_total"] == 1
    assert sum("worker bad is rejected" in line for line in caplog.messages) == 1
    updates = training.total_updates
    until(lambda: training.total_updates > updates)
