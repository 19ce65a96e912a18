"""The trainer and its checkpoints: what survives, and what training does not wait for."""

import errno
import itertools
import threading

import numpy as np
import pytest

from tmrl_like import checkpoint
from tmrl_like.errors import CheckpointError, EncodingError
from tmrl_like.memories import ReplayMemory
from tmrl_like.networking.outbox import OutboxOptions
from tmrl_like.testing.fakes import CountingEnv, ListMemory
from tmrl_like.util import partial

SOON = OutboxOptions(max_age_s=0.0)
STEADY = partial(CountingEnv, step_s=0.002)


def take_until(trainer, samples):
    """Put what arrives into the memory, as training does."""
    from tmrl_like.metrics.rounds import RoundMetrics

    while trainer.training.total_samples < samples:
        trainer.training._update_buffer(trainer.link, RoundMetrics(0, 0), 0.05)


def steps_of(memory):
    """(episode, step) of every row, oldest first."""
    numbers = np.arange(memory._lanes.oldest, memory._lanes.written) % memory._lanes.capacity
    return [tuple(obs) for obs in memory._fields[1].columns[0].array[numbers].astype(int).tolist()]


def is_gapless(steps):
    pairs = itertools.pairwise(steps)
    return all(b in ((a[0], a[1] + 1), (a[0] + 1, 0)) for a, b in pairs)


def test_samples_are_stored_as_they_arrive_and_a_killed_trainer_goes_on_with_all_of_them(house, tmp_path, until):
    house.server()
    worker = house.worker(STEADY, outbox=SOON)
    first = house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    thread = house.start(worker.run, nb_episodes=20)
    take_until(first, 220)
    thread.join()
    until(lambda: not worker._outbox.unacknowledged_samples())  # no checkpoint was written, and the worker forgot them
    assert not (tmp_path / "manifest.json").exists()
    first.link.retrieve(0.1)
    first.close()
    house.start(worker.run, nb_episodes=10)
    second = house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    assert second.training.total_samples == 220
    take_until(second, 330)
    steps = steps_of(second.training.memory)
    assert (len(steps), steps[0], is_gapless(steps)) == (330, (1, 0), True)


def test_what_arrived_after_a_checkpoint_is_joined_with_its_agent(house, tmp_path):
    house.server()
    worker = house.worker(STEADY, outbox=SOON)
    first = house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    house.start(worker.run)
    for samples in (60, 150):
        take_until(first, samples)
        first.training.total_updates += 5
        first.training.agent.steps += 5
        if samples == 60:
            first.save_checkpoint()
    kept = first.training.total_samples
    first.close()
    second = house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    training = second.training
    assert (training.agent.steps, training.total_updates, training.total_samples) == (5, 5, kept)
    take_until(second, 300)
    assert is_gapless(steps_of(training.memory))
    assert len(steps_of(training.memory)) == training.total_samples


def test_a_second_trainer_in_the_same_folder_is_one_line(house, tmp_path):
    house.server()
    house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    with pytest.raises(CheckpointError, match="in use by another trainer"):
        house.trainer(ReplayMemory, checkpoint_path=tmp_path)


def test_a_trainer_that_could_not_be_made_lets_go_of_its_folder(house, tmp_path):
    house.server()

    def updater(training, training_cls):
        raise ZeroDivisionError

    first = house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    first.save_checkpoint()
    first.close()
    with pytest.raises(ZeroDivisionError):
        house.trainer(ReplayMemory, checkpoint_path=tmp_path, updater_fn=updater)
    house.trainer(ReplayMemory, checkpoint_path=tmp_path)


@pytest.mark.parametrize("resume", ["all", "memory", "none"])
def test_no_trainer_starts_beside_training_files_without_their_manifest(zmq_house, tmp_path, resume):
    first = zmq_house.trainer(checkpoint_path=tmp_path)
    first.save_checkpoint()
    first.close()
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"is missing, but training-1\.pt is there"):
        zmq_house.trainer(checkpoint_path=tmp_path, resume=resume)


@pytest.fixture
def slow_disk(monkeypatch):
    """Checkpoints are written when the event is set."""
    may_write, real = threading.Event(), checkpoint.write_atomically

    def write(*arguments):
        assert may_write.wait(20)
        real(*arguments)

    monkeypatch.setattr(checkpoint, "write_atomically", write)
    yield may_write
    may_write.set()


@pytest.mark.parametrize("memory_cls", [ReplayMemory, ListMemory])
def test_training_does_not_wait_for_the_disk(house, tmp_path, until, slow_disk, memory_cls):
    house.server()
    worker = house.worker(partial(CountingEnv, step_s=0.0005))
    trainer = house.trainer(memory_cls, checkpoint_path=tmp_path, training={"epochs": 5})
    house.start(worker.run)
    running = house.start(trainer.run)
    until(lambda: trainer.training.total_updates == 100)  # five epochs, while the first checkpoint is being written
    assert not (tmp_path / "manifest.json").exists()
    slow_disk.set()
    running.join()
    trainer.close()
    last = house.trainer(memory_cls, checkpoint_path=tmp_path, training={"epochs": 6})
    assert (last.training.total_updates, last.training.epoch, last.training.agent.steps) == (100, 5, 100)


def test_closing_waits_for_the_thread_that_trains_and_for_its_checkpoint(house, tmp_path, until, slow_disk):
    house.server()
    worker = house.worker(partial(CountingEnv, step_s=0.0005))
    trainer = house.trainer(checkpoint_path=tmp_path, training={"epochs": 1000})
    house.start(worker.run)
    running = house.start(trainer.run)
    until(lambda: trainer.training.epoch == 2)
    closing = house.start(trainer.close)
    running.join(0.5)
    assert running.is_alive()  # in the last checkpoint, which is held up by the one before
    assert closing.is_alive()
    slow_disk.set()
    closing.join()
    assert not running.is_alive()
    assert house.trainer(checkpoint_path=tmp_path).training.epoch == trainer.training.epoch


def test_a_full_disk_is_said_once_and_at_the_end_and_training_goes_on(house, tmp_path, monkeypatch, caplog):
    house.server()
    worker = house.worker(partial(CountingEnv, step_s=0.0005))
    trainer = house.trainer(checkpoint_path=tmp_path, training={"epochs": 4})
    house.start(worker.run)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_atomically", full)
    trainer.run()
    first, last = [r.message for r in caplog.records if "cannot write the checkpoint" in r.message]
    assert "No space left on device; training goes on" in first
    assert last.startswith("training ends without its last checkpoint: ")
    assert trainer.training.total_updates == 80
    monkeypatch.undo()
    trainer.save_checkpoint()
    assert (tmp_path / "manifest.json").exists()


def test_what_cannot_be_written_ends_the_run_with_its_name(house, tmp_path):
    class Odd(ListMemory):
        state_attributes = ("data", "odd")
        odd = (object(),)

    house.server()
    worker = house.worker(partial(CountingEnv, step_s=0.0005))
    trainer = house.trainer(Odd, checkpoint_path=tmp_path)
    house.start(worker.run)
    with pytest.raises(EncodingError, match="object"):
        trainer.run()


def test_what_was_acknowledged_is_known_beside_a_checkpoint_in_a_format_of_ones_own(house, tmp_path):
    from tmrl_like.memories.state import decode, encode
    from tmrl_like.testing.fakes import CountingAgent
    from tmrl_like.training_offline import TrainingOffline

    def load(path):
        training = TrainingOffline(CountingEnv, ListMemory, CountingAgent)
        training.memory.data = decode(path.read_bytes())
        training.total_samples = len(training.memory.data)
        return training

    functions = {
        "dump_run_instance_fn": lambda training, path: path.write_bytes(encode(training.memory.data)),
        "load_run_instance_fn": load,
        "checkpoint_path": tmp_path / "mine",
    }
    house.server()
    worker = house.worker(STEADY, outbox=SOON)
    first = house.trainer(**functions)
    house.start(worker.run)
    take_until(first, 50)
    first.link.checkpoint_written = lambda bookkeeping: None  # killed before it could say so
    first.save_checkpoint()
    first.close()
    second = house.trainer(**functions)
    take_until(second, 150)
    assert is_gapless([tuple(sample.obs.astype(int).tolist()) for sample in second.training.memory.data])


def test_what_a_checkpoint_under_way_raises_is_said_at_close(zmq_house, tmp_path, monkeypatch, caplog):
    may_fail = threading.Event()

    def write(self, path):
        assert may_fail.wait(20)
        raise EncodingError("memory.odd is a builtins.object")

    monkeypatch.setattr(checkpoint.Snapshot, "write", write)
    trainer = zmq_house.trainer(checkpoint_path=tmp_path)
    trainer._checkpoints.save(trainer.training, trainer.link)
    may_fail.set()
    trainer.close()
    trainer.close()
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "memory.odd is a builtins.object" in said
    assert str(tmp_path) in said
