"""A worker whose samples do not fit what the memory holds: the others go on, and nothing of its is
lost unsaid.
"""

import numpy as np
import pytest

from tmrl_like.base.functional import partial
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.segments import incarnations_in
from tmrl_like.delivery.source import Source
from tmrl_like.errors import RefusedError
from tmrl_like.replay import ReplayMemory
from tmrl_like.testing.fakes import CountingEnv
from tmrl_like.transport import TransportOptions

ENV = partial(CountingEnv, step_s=0.002)
# no packet holds a reset alone, which would be cast
SOON = OutboxOptions(max_age_s=0.0, min_samples=2)
EPOCHS = {"epochs": float("inf"), "rounds": 1, "steps": 20, "max_training_steps_per_env_step": 0.5}


def in_float64(act, obs, rew, terminated, truncated, info):
    return act, obs.astype(np.float64), rew, terminated, truncated, info


def kept_in(folder):
    """The entries that each process left and nobody has stored: (first, last) by incarnation."""
    kept = {}
    for incarnation in incarnations_in(folder):
        source = Source(folder, "bad", incarnation)
        kept[incarnation] = source.stored + 1, source.newest
        source.close()
    return kept


class Memory(ReplayMemory):
    """Knows whose samples it has: WORKER/INCARNATION."""

    processes = frozenset()

    def append_buffer(self, buffer):
        super().append_buffer(buffer)
        self.processes |= {buffer.stream.rsplit("/", 2)[0]}


@pytest.mark.fault(
    "peers",
    "a worker's samples do not fit",
    "that worker is refused in one line; the others and the trainer go on",
)
def test_one_misconfigured_worker_ends_itself_and_not_the_trainer(house, tmp_path, until, caplog):
    is_durable = house.transport == "zmq"  # a store, or none: of each the half
    server = house.server(limits=TransportOptions(silent_after_s=2.0))
    checkpoint = {"checkpoint_path": tmp_path / "checkpoint"} if is_durable else {}
    trainer = house.trainer(Memory, EPOCHS, **checkpoint)
    training = trainer.training
    thread = house.start(trainer.run)
    good = house.worker(ENV, name="good", outbox=SOON)
    house.start(good.run)
    until(lambda: training.total_updates > 20)

    spool = {"name": "bad", "outbox": SOON, "spool": tmp_path / "spool"}
    bad = house.worker(ENV, sample_compressor=in_float64, **spool)
    with pytest.raises(
        RefusedError, match=r"obs began as float32 \(2,\) and is now float64 \(2,\)"
    ) as ended:
        bad.run()
    assert "start both with the same environment and sample_compressor" in str(ended.value)
    until(lambda: server.workers() == ["good"])
    bad.close()
    of_bad = bad.loop.samples.incarnation
    left = kept_in(tmp_path / "spool" / "bad")
    assert left == {of_bad: (1, bad.loop.samples.entries)}

    successor = house.worker(ENV, **spool)
    house.start(successor.run)
    updates = training.total_updates
    until(lambda: "an earlier process of this worker left on disk do not fit" in caplog.text)
    until(lambda: any(process.startswith("bad/") for process in training.memory.processes))
    until(lambda: training.total_updates > updates + 20)
    assert thread.is_alive()
    assert trainer.link.fleet()["rejected_workers_total"] == 1
    processes = {
        f"good/{good.loop.samples.incarnation}",
        f"bad/{successor.loop.samples.incarnation}",
    }
    until(lambda: training.memory.processes == processes)
    assert len([r for r in caplog.records if "worker bad is rejected" in r.message]) == 1
    successor.close()
    assert kept_in(tmp_path / "spool" / "bad")[of_bad] == left[of_bad]
    trainer.stop()
    thread.join(60)
    assert not thread.is_alive()
    if is_durable:
        trainer.close()
        resumed = house.trainer(Memory, EPOCHS, **checkpoint)
        assert resumed.training.memory.processes == processes
