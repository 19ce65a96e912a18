"""The trainer's checkpoints: what survives, and what training does not wait for."""

import errno
import pickle
import threading
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from house import linear_actor
from kit.failing import failing
from kit.fakes import CountingAgent, CountingEnv
from kit.refusals import one_line
from kit.trainings import HoldingBack, Run, message, taken
from kit.trainings import training as training_of

from tmrl_like.base.files import disk, write_atomically
from tmrl_like.base.functional import partial
from tmrl_like.delivery import sample_store
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.errors import (
    CheckpointError,
    ConfigError,
    DivergedError,
)
from tmrl_like.replay import ReplayMemory
from tmrl_like.trainer import checkpoint_file
from tmrl_like.trainer.checkpoint_file import Kept
from tmrl_like.trainer.connecting import expect_no_worker
from tmrl_like.trainer.options import TrainerOptions
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.types import Buffer, Info, Sample


@pytest.fixture(autouse=True)
def runs_end():
    yield
    Run.close_all()


def run_before(path, *packets, updates=0, **options):
    """Have a run take these packets and be killed; with `updates`, it first saves a checkpoint of
    version 3.
    """
    run = Run(path, **options)
    run.take(*packets)
    if updates:
        run.training.total_updates = updates
        run.save(version=3)
    run.kill()


def refuse(path, match, error=CheckpointError, **options):
    """Check that a run cannot resume there, with an error message of one line."""
    with one_line(match, error) as caught:
        Run(path, **options)
    assert error is ConfigError or str(path) in str(caught.value)


# a user's own format


def dump(training, path):
    write_atomically(path, pickle.dumps(training))


def load(path):
    return pickle.loads(path.read_bytes())  # noqa: S301


OWN = {"dump": dump, "load": load}
FORMATS = pytest.mark.parametrize("formats", [{}, OWN])


# -- what comes back -------------------------------------------------------------------------------


def test_reading_samples_again_is_no_training_time(tmp_path, monkeypatch):
    """tests/power/test_kept_files.py: all samples that were acknowledged come back, in order."""
    monkeypatch.setattr(TrainingOffline, "clock", lambda to: float(len(to.memory.data)))
    run_before(tmp_path, 1, 2, updates=5)
    assert Run(tmp_path).training.elapsed_s == 20.0  # as at the checkpoint


def test_samples_that_the_memory_has_dropped_leave_the_disk_and_still_count(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_store, "SMALL_BYTES", 1)  # a file per packet
    first = Run(tmp_path, {"memory_size": 25})
    for number in range(1, 9):
        first.take(number)
    assert len(list((tmp_path / "log").glob("*.log"))) == 3
    first.kill()
    second = Run(tmp_path, {"memory_size": 25})
    assert second.take(8) == {"w": 8}
    assert second.held == (list(range(55, 80)), (80, 0))


def test_what_was_dropped_as_stale_is_not_joined_over_a_restart(tmp_path):
    first = Run(tmp_path)
    first.take(1)
    (dropped,) = taken(first.receiver, message(2), is_admitted=False)
    first.receiver.confirm([dropped.receipt])
    assert first.take() == {"w": 2}
    first.kill()
    second = Run(tmp_path, memory_cls=ReplayMemory)
    second.take(3, oldest=21)  # the worker has removed acknowledged entries
    ends = [second.memory.get_transition(k).obs[0] for k in range(len(second.memory))]
    assert ends == [*range(1, 10), *range(21, 30)]


def test_samples_around_a_checkpoint_count_once_and_allow_training_in_lockstep_once(
    tmp_path, monkeypatch
):
    def take(run, number):
        before = run.training.total_samples
        stored = run.take(number)
        run.training.pacer.add_tasks(run.training.total_samples - before)
        return stored

    first = Run(tmp_path)
    first.training.pacer.enter_lockstep(0)
    take(first, 1)
    first.save()
    take(first, 2)
    first.kill()
    second = Run(tmp_path)
    assert second.training.pacer.tasked_steps == 20
    with monkeypatch.context() as patch:
        patch.setattr(SampleStore, "is_settled", lambda *_: False)
        assert take(second, 3) == {"w": 2}
        assert second.training.total_samples == 30
        second.save()
        second.kill()
    third = Run(tmp_path)
    assert third.training.pacer.tasked_steps == third.training.total_samples == 20
    assert take(third, 3) == {"w": 3}  # it was not stored, and comes again
    assert third.training.pacer.tasked_steps == 30
    assert third.held == (list(range(30)), (30, 0))


# -- what is given up ------------------------------------------------------------------------------


@FORMATS
def test_without_resuming_nothing_of_the_run_before_comes_back(tmp_path, formats):
    path = tmp_path / "run"
    run_before(path, 1, 2, updates=7, **formats)
    Run(path, resume="none", **formats).kill()  # before anything has arrived
    second = Run(path, **formats)
    assert second.held == ([], (0, 0))
    assert second.take(1, n=5) == {"w": 1}  # stands for another process's packet
    second.save()
    second.kill()
    third = Run(path, **formats)
    assert third.held == (list(range(5)), (5, 0))


@FORMATS
def test_what_is_there_stays_where_a_new_training_cannot_begin(tmp_path, monkeypatch, formats):
    path = tmp_path / "run"
    run_before(path, 1, 2, updates=7, **formats)
    refuse(path, "memory_size", ConfigError, resume="none", memory={"memory_size": 0}, **formats)
    with monkeypatch.context() as patch:
        for change in ("remove", "rename"):
            patch.setattr(disk, change, failing(errno.EACCES))
        refuse(path, "cannot give up the checkpoint.*Permission denied", resume="none", **formats)
    second = Run(path, **formats)
    assert second.held == (list(range(20)), (20, 7))


def test_with_the_memory_alone_its_samples_count_as_recorded_and_the_agent_before_stays_away(
    tmp_path,
):
    run_before(tmp_path, 1, 2, updates=7)
    Run(tmp_path, resume="memory").kill()  # before its first checkpoint
    second = Run(tmp_path)
    assert second.held == (list(range(20)), (20, 0))
    assert second.training.kept.version == 0
    second.kill()
    third = Run(tmp_path, resume="memory")
    assert third.training.pacer.recorded_samples == third.training.total_samples == 19
    third.take(3)
    third.save()
    third.kill()
    last = Run(tmp_path)
    assert last.held == (list(range(30)), (19 + 10, 0))


@pytest.mark.parametrize("resume", ["all", "memory"])
def test_samples_that_do_not_fit_the_memory_any_more_are_one_line_and_stay(tmp_path, resume):
    run_before(tmp_path, 1, updates=7)
    match = "do not fit the memory.*obs is not a tuple.*restore the settings"
    other = {"memory": {"act_buf_len": 2}, "memory_cls": ReplayMemory}
    refuse(tmp_path, match, resume=resume, **other)
    second = Run(tmp_path)
    assert second.held == (list(range(10)), (10, 7))


def test_the_checkpoint_of_another_training_is_not_joined_with_the_samples_and_stays(tmp_path):
    for name in ("one", "other"):
        run_before(tmp_path / name, 1, 2, updates=7)
    (tmp_path / "one" / "checkpoint-1").rename(tmp_path / "other" / "checkpoint-2")
    refuse(tmp_path / "other", "or a checkpoint of another one: move what does not belong")
    (tmp_path / "other" / "checkpoint-2").unlink()
    assert Run(tmp_path / "other").counts == (20, 7)


# -- a checkpoint in a format of the user's own ----------------------------------------------------


@pytest.mark.fault(
    "processes",
    "the trainer is killed around a checkpoint of the user's own format",
    "no sample is lost or doubled",
)
@pytest.mark.parametrize("is_written", [False, True])
def test_a_kill_around_a_dump_in_a_format_of_ones_own_neither_loses_nor_doubles_samples(
    tmp_path, is_written
):
    def die(training, path):
        if is_written:
            dump(training, path)
        raise KeyboardInterrupt

    first = Run(tmp_path / "mine", **OWN)
    first.take(1, 2)
    first.save()
    first.take(3, 4)
    first.checkpoints.dump = die
    with pytest.raises(KeyboardInterrupt):
        first.save()
    first.take(5)
    first.kill()
    second = Run(tmp_path / "mine", **OWN)
    assert second.held == (list(range(50)), (50, 0))
    assert second.take(5, 6) == {"w": 6}
    assert second.numbers == list(range(60))


@pytest.mark.parametrize("with_memory", [True, False])
def test_what_is_restored_without_what_says_which_samples_it_has_has_none_twice(
    tmp_path, caplog, with_memory
):
    def load_without_kept(path):
        training = load(path) if with_memory else training_of()
        training.kept = Kept()
        return training

    first = Run(tmp_path / "mine", **OWN)
    first.take(1, 2)
    first.save()
    first.take(3)
    first.kill()
    second = Run(tmp_path / "mine", dump=dump, load=load_without_kept)
    assert second.numbers == list(range(20 if with_memory else 30))
    assert ("those stored in" in caplog.text) == with_memory
    assert second.take(3, 4) == {"w": 4}
    assert second.numbers[-10:] == list(range(30, 40))
    assert second.training.total_samples == 40


def test_samples_that_were_held_back_are_in_a_dump_or_do_not_fit_and_end_no_training(tmp_path):
    run = Run(tmp_path / "own", memory_cls=HoldingBack, **OWN)
    run.take(1)
    misfits = [Sample(0, np.zeros(3, np.float32), 0.0, False, False, Info())] * 9
    for stream in ("a", "b"):
        run.memory.append(Buffer(misfits, stream))
    run.take(1, worker="other", n=3)
    run.save()
    assert len(load(tmp_path / "own").memory.data) == 10 + 3
    run.memory.append(Buffer(misfits, "a"))
    expect_no_worker(run.training)


# -- beside training -------------------------------------------------------------------------------


@pytest.fixture
def driven(inproc_house):
    """A house with a server and a running worker."""
    inproc_house.server()
    worker = inproc_house.worker(
        partial(CountingEnv, step_s=0.002), outbox=OutboxOptions(max_age_s=0.0)
    )
    inproc_house.start(worker.run)
    return inproc_house


def test_a_trainer_goes_on_from_what_functions_of_the_users_have_written_and_patched(
    inproc_house, tmp_path
):
    def updater(training, make):
        training.steps += training.total_updates
        return training

    options = {
        "dump_run_instance_fn": dump,
        "load_run_instance_fn": load,
        "checkpoint_path": tmp_path / "mine",
        "updater_fn": updater,
    }
    first = inproc_house.trainer(**options)
    steps = first.training.steps
    first.training.total_updates = 7
    first.save_checkpoint()
    first.close()
    assert inproc_house.trainer(**options).training.steps == steps + 7


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("load_run_instance_fn", {"load": lambda path: None}),
        ("updater_fn", {"updater": lambda training, make: None}),
    ],
)
def test_a_function_of_the_users_that_returns_no_training_is_one_line(tmp_path, name, function):
    run_before(tmp_path / "own", 1, updates=7, **OWN)
    said = f"{name} returned None; expected the train"
    refuse(tmp_path / "own", said, ConfigError, **OWN | function)


@pytest.mark.fault("disk", "the trainer's disk is slow", "training does not wait for it")
def test_training_does_not_wait_for_the_disk_and_closing_waits_for_both(
    driven, tmp_path, until, monkeypatch
):
    is_free = threading.Event()

    def write(*arguments):
        assert is_free.wait(60)
        write_atomically(*arguments)

    monkeypatch.setattr(checkpoint_file, "write_atomically", write)
    trainer = driven.trainer(checkpoint_path=tmp_path, training={"epochs": 1000})
    running = driven.start(trainer.run)
    until(lambda: trainer.training.epoch >= 2)  # while the first checkpoint is being written
    assert not list(tmp_path.glob("checkpoint-*"))
    closing = driven.start(trainer.close)
    running.join(0.1)
    assert running.is_alive()  # writing the last checkpoint, which the one before holds up
    assert closing.is_alive()
    is_free.set()
    closing.join()
    assert not running.is_alive()
    assert driven.trainer(checkpoint_path=tmp_path).training.epoch == trainer.training.epoch


@pytest.mark.fault(
    "disk", "the disk is full while a checkpoint is written", "the one before stays whole"
)
@pytest.mark.fault("disk", "the trainer's disk is full", "training goes on, and one line says so")
def test_a_full_disk_is_reported_once_training_goes_on_and_the_run_ends_with_it(
    driven, tmp_path, monkeypatch, caplog
):
    def is_checkpoint(source, path):
        return path.name.startswith("checkpoint-")

    trainer = driven.trainer(checkpoint_path=tmp_path, training={"epochs": 4})
    trainer.save_checkpoint()
    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", failing(errno.ENOSPC, disk.rename, is_checkpoint))
        with pytest.raises(CheckpointError, match=r"last checkpoint.*No space left on device"):
            trainer.run()
    (said,) = [line for line in caplog.messages if "cannot write the checkpoint" in line]
    assert "No space left on device; training goes on" in said
    assert trainer.training.total_updates == 80
    assert checkpoint_file.read_newest(tmp_path).head.number == 1
    trainer.save_checkpoint()
    assert checkpoint_file.read_newest(tmp_path).head.number == 2


FULL = RuntimeError("unexpected pos 704")  # what torch.save raises if the disk is full


@pytest.mark.parametrize(
    ("is_own", "fault", "error"),
    [
        (True, FULL, CheckpointError),
        (True, NotImplementedError("later"), NotImplementedError),
        (False, FULL, RuntimeError),  # we give torch no file
    ],
)
def test_only_a_full_disk_under_a_format_of_ones_own_does_not_end_training(
    tmp_path, monkeypatch, is_own, fault, error
):
    monkeypatch.setattr(torch, "save", Mock(side_effect=fault))
    run = Run(tmp_path / "own", dump=torch.save if is_own else None)
    with pytest.raises(error, match=str(fault)):
        run.save()
        run.checkpoints.finish(run.training)


def test_checkpoints_may_be_limited_by_time_and_the_last_one_is_written(driven, tmp_path):
    options = TrainerOptions(checkpoint_interval_s=1e6)
    training = {"rounds": 1, "epochs": 4}
    driven.trainer(training=training, checkpoint_path=tmp_path, options=options).run()
    newest = checkpoint_file.read_newest(tmp_path).head
    assert (newest.number, newest.epoch) == (2, 4)


class Diverging(CountingAgent):
    """An agent one of whose biases becomes NaN after 15 steps."""

    def __init__(self, which, **options):
        super().__init__(**options)
        self.critics, self.models = [torch.nn.Linear(2, 1)], {"next": torch.nn.Linear(2, 1)}
        self.which = which

    def train(self, batch):
        if self.steps == 15:
            bias = (self.actor.layer.bias, self.critics[0].bias, self.models["next"].bias)
            torch.nn.init.constant_(bias[self.which], torch.nan)
        return super().train(batch)


@pytest.mark.fault(
    "robots",
    "training diverges to NaN",
    "the weights are neither published nor written, and training ends in one line",
)
@pytest.mark.parametrize(
    ("which", "where"),
    [(0, r"(actor\.)?layer"), (1, r"critics\[0\]"), (2, r"models\['next'\]")],
)
def test_weights_that_are_not_finite_are_neither_published_nor_written_and_end_training(
    driven, tmp_path, which, where
):
    path = tmp_path / "checkpoint"
    training = {"training_agent_cls": partial(Diverging, which=which), "rounds": 1, "epochs": 3}
    trainer = driven.trainer(
        training=training, checkpoint_path=path, model_path=tmp_path / "published"
    )
    said = f"training has diverged: {where}.bias holds values that are not finite; .* a preproc"
    with pytest.raises(DivergedError, match=said):
        trainer.run()
    with pytest.raises(DivergedError):
        trainer.save_checkpoint()
    trainer.close()
    assert linear_actor().load(tmp_path / "published").layer.bias.isfinite().all()
    resumed = driven.trainer(training=training, checkpoint_path=path).training
    assert resumed.agent.steps == resumed.total_updates == 10  # when all was finite
