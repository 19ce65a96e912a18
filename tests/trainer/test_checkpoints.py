"""The trainer and its checkpoints: what survives, and what training does not wait for."""

import errno
import itertools
import pickle
import threading
from typing import ClassVar

import numpy as np
import pytest
import torch
from kit.packets import packet_of

from tmrl_like.base.files import disk, write_atomically, write_whole
from tmrl_like.base.functional import partial
from tmrl_like.delivery import receiver
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.errors import CheckpointError, ConfigError, DivergedError, EncodingError
from tmrl_like.replay import ReplayMemory
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, LinearActor, ListMemory
from tmrl_like.trainer import checkpoint_file
from tmrl_like.trainer.checkpoint_file import Kept
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.trainer.options import TrainerOptions
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import Snapshot
from tmrl_like.wire import messages as m

SOON = OutboxOptions(max_age_s=0.0)
STEADY = partial(CountingEnv, step_s=0.002)


def message(number, worker="w", n=10, **header):
    """The packet of this number: its `n` samples have the rewards n * (number - 1), …, and the entries behind them."""
    first, action = n * (number - 1), np.zeros(1, np.float32)
    samples = [(action, np.full(2, k, np.float32), float(k), False, False, {}) for k in range(first, first + n)]
    return packet_of(first + 1, *samples, worker=worker, incarnation=1, **header)


class Run:
    """A trainer without a network: training, log and checkpoints. `kill` leaves what is on disk as it is."""

    alive: ClassVar[list[Checkpoints]] = []

    def __init__(
        self, path, memory_cls=ReplayMemory, resume="all", dump=None, load=None, small_bytes=1 << 20, **memory
    ):
        self.training_cls = partial(
            TrainingOffline, CountingEnv, partial(memory_cls, batch_size=2, **memory), CountingAgent
        )
        make_store = partial(SampleStore, small_bytes=small_bytes)
        self.checkpoints = Checkpoints(path, dump, load, make_store=make_store)
        try:
            self.training = self.checkpoints.build(self.training_cls, resume)
        except BaseException:
            self.checkpoints.close()
            raise
        self.alive.append(self.checkpoints)
        self.receiver = self.checkpoints.receiver
        self.memory = self.training.memory
        self.now = 0.0

    def take(self, *numbers, worker="w", now=None, n=10, **header):
        """What arrives in one go: into the memory, and then on the disk. Returns the newest packets that are stored."""
        self.now = self.now + 1.0 if now is None else now
        deliveries = []
        for number in numbers:
            data = message(number, worker, n, **header)
            packet, body = m.decode(data)
            deliveries += self.receiver.take(packet, body, data, self.now, lambda packet: True)
        for delivery in deliveries:
            self.memory.append(delivery.buffer)
            self.training.total_samples += len(delivery.buffer)
        self.receiver.confirm([delivery.receipt for delivery in deliveries])
        return self.write(self.now, n)

    def write(self, now, n=10):
        self.receiver.write(now)
        return {ack.worker: ack.stored // n for ack in self.receiver.due() if isinstance(ack, m.Ack)}

    def save(self, version=1):
        self.checkpoints.save(self.training, version, wait=True)

    def kill(self):
        self.checkpoints.close()


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def run_before(path, *taken, updates=0, **options):
    """A run that took these packets, and was killed; with training steps, after a checkpoint of version 3."""
    run = Run(path, **options)
    run.take(*taken)
    if updates:
        run.training.total_updates = updates
        run.save(version=3)
    run.kill()


@pytest.fixture(autouse=True)
def runs_end():
    yield
    while Run.alive:
        Run.alive.pop().close()


def numbers(memory):
    """The numbers of all samples in the memory."""
    if isinstance(memory, ListMemory):
        return [int(sample.rew) for sample in memory.data if not sample.info.is_context]
    transitions = map(memory.get_transition, range(len(memory)))
    return sorted({int(obs[0]) for transition in transitions for obs in (transition.last_obs, transition.obs)})


@pytest.mark.parametrize("memory_cls", [ReplayMemory, ListMemory])
def test_a_resumed_trainer_gives_any_memory_every_sample_that_was_acknowledged_in_its_order(tmp_path, memory_cls):
    first = Run(tmp_path, memory_cls)
    for number in range(1, 8):
        assert first.take(number) == {"w": number}
        if number == 3:
            first.training.total_updates = 5
            first.save(version=4)
    first.kill()
    second = Run(tmp_path, memory_cls)
    assert numbers(second.memory) == numbers(first.memory) == list(range(70))
    assert (second.training.total_updates, second.training.total_samples, second.training.kept.version) == (5, 70, 4)
    assert second.take(7, 8) == {"w": 8}  # the acknowledgement of 7 was lost: it comes again
    assert numbers(second.memory) == list(range(80))
    if memory_cls is ReplayMemory:
        assert len(second.memory) == 79  # the first sample after the restart continues the last one before it


def test_samples_of_several_workers_come_back_in_the_order_of_the_memory(tmp_path):
    first = Run(tmp_path)
    for number in range(1, 4):
        for worker in ("a", "b", "b2"):
            first.take(number, worker=worker, n=1 + len(worker))
    first.kill()
    second = Run(tmp_path)
    found, expected = (
        [(t.last_obs.tolist(), t.rew, t.obs.tolist()) for t in map(memory.get_transition, range(len(memory)))]
        for memory in (second.memory, first.memory)
    )
    assert found == expected
    assert len(found) > 10


@pytest.mark.parametrize("size", [0, 1, 20])
def test_a_file_that_is_cut_off_at_its_beginning_costs_nothing_that_was_acknowledged(tmp_path, size):
    run_before(tmp_path, 1, 2)
    (file,) = (tmp_path / "log").glob("*.log")
    (tmp_path / "log" / "0000000002.log").write_bytes(file.read_bytes()[:size])
    second = Run(tmp_path)
    assert numbers(second.memory) == list(range(20))
    assert second.take(3) == {"w": 3}
    second.kill()
    assert numbers(Run(tmp_path).memory) == list(range(30))


def test_samples_that_the_memory_has_dropped_leave_the_disk_and_still_count(tmp_path):
    first = Run(tmp_path, memory_size=25, small_bytes=1)  # a file per packet
    for number in range(1, 9):
        first.take(number)
    assert len(list((tmp_path / "log").glob("*.log"))) == 3
    first.kill()
    second = Run(tmp_path, memory_size=25)
    assert (numbers(second.memory), second.training.total_samples) == (list(range(55, 80)), 80)
    assert second.take(8) == {"w": 8}
    assert second.training.total_samples == 80


def test_without_resuming_nothing_of_the_run_before_is_left(tmp_path):
    run_before(tmp_path, 1, 2, updates=7)
    second = Run(tmp_path, resume="none")
    assert (len(second.memory), second.training.total_samples, second.training.total_updates) == (0, 0, 0)
    assert second.take(1, n=5) == {"w": 1}  # of another process, had it a name of its own
    second.kill()
    third = Run(tmp_path)  # the agent of the first run is not joined with the samples of the second
    assert (numbers(third.memory), third.training.total_updates) == (list(range(5)), 0)


@pytest.mark.parametrize("form", ["ours", "one's own"])
@pytest.mark.parametrize("may_change_it", [True, False])
def test_without_resuming_the_agent_before_stays_away_although_nothing_has_arrived(
    tmp_path, monkeypatch, form, may_change_it
):
    own, path = OwnFormat(), tmp_path / "run"
    formats = {} if form == "ours" else {"memory_cls": ListMemory, "dump": own.dump, "load": own.load}
    run_before(path, 1, 2, updates=7, **formats)

    def refuse(*paths):
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        if may_change_it:
            Run(path, resume="none", **formats).kill()
        else:
            patch.setattr(disk, "remove", refuse)
            patch.setattr(disk, "rename", refuse)
            with pytest.raises(CheckpointError, match=r"cannot give up the checkpoint.*Permission denied") as caught:
                Run(path, resume="none", **formats)
            one_line(caught, path)
    second = Run(path, **formats)
    expected = (0, 0) if may_change_it else (20, 7)
    assert (second.training.total_samples, second.training.total_updates) == expected
    assert second.take(3, oldest=21) == {"w": 3}
    second.save()
    second.kill()
    assert Run(path, **formats).training.total_samples == expected[0] + 10


def test_without_resuming_what_is_there_stays_when_the_training_cannot_be_made(tmp_path):
    run_before(tmp_path, 1, 2)
    with pytest.raises(ConfigError, match="memory_size"):
        Run(tmp_path, resume="none", memory_size=0)
    assert numbers(Run(tmp_path).memory) == list(range(20))


def test_with_the_memory_alone_its_samples_count_as_recorded_and_once(tmp_path):
    run_before(tmp_path, 1, 2, updates=7)
    second = Run(tmp_path, resume="memory")
    training = second.training
    assert (len(second.memory), training.total_updates, second.training.kept.version) == (19, 0, 0)
    assert training.pacer.recorded_samples == training.total_samples > 0
    before = training.total_samples
    second.take(3)
    second.save()
    second.kill()
    third = Run(tmp_path)
    assert numbers(third.memory) == list(range(30))
    assert third.training.total_samples == before + 10


def test_with_the_memory_alone_the_agent_before_stays_away_after_a_kill_as_well(tmp_path):
    run_before(tmp_path, 1, 2, updates=7)
    with pytest.raises(CheckpointError, match="do not fit the memory"):
        Run(tmp_path, resume="memory", act_buf_len=2)
    same = Run(tmp_path)
    assert same.training.total_updates == 7
    same.kill()
    Run(tmp_path, resume="memory").kill()  # before its first checkpoint
    second = Run(tmp_path)
    assert (numbers(second.memory), second.training.total_updates) == (list(range(20)), 0)
    assert (second.training.total_samples, second.training.kept.version) == (20, 0)


def test_the_checkpoint_of_another_training_is_not_joined_with_the_samples_and_stays(tmp_path):
    for name in ("one", "other"):
        run_before(tmp_path / name, 1, 2, updates=7)
    (tmp_path / "one" / "checkpoint-1").rename(tmp_path / "other" / "checkpoint-2")
    with pytest.raises(CheckpointError, match="or a checkpoint of another one: move what does not belong") as caught:
        Run(tmp_path / "other")
    one_line(caught, tmp_path)
    (tmp_path / "other" / "checkpoint-2").unlink()
    assert Run(tmp_path / "other").training.total_samples == 20


def one_line(caught, path):
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_samples_of_another_wire_version_are_one_line_and_stay(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(m, "WIRE_VERSION", m.WIRE_VERSION + 1)
        run_before(tmp_path, 1)
        with pytest.raises(CheckpointError, match=f"are of wire version {m.WIRE_VERSION}") as caught:
            patch.undo()
            Run(tmp_path)
        one_line(caught, tmp_path)
        patch.setattr(m, "WIRE_VERSION", m.WIRE_VERSION + 1)
        assert numbers(Run(tmp_path).memory) == list(range(10))


@pytest.mark.parametrize(
    ("memory", "reason"),
    [({"act_buf_len": 2}, "obs is not a tuple"), ({"frame_stack": {"camera": 4}}, "frame_stack")],
)
def test_samples_that_do_not_fit_the_memory_any_more_are_one_line_and_stay(tmp_path, memory, reason):
    run_before(tmp_path, 1)
    with pytest.raises(CheckpointError, match=f"do not fit the memory.*{reason}.*restore the settings") as caught:
        Run(tmp_path, **memory)
    one_line(caught, tmp_path)
    assert numbers(Run(tmp_path).memory) == list(range(10))


@pytest.mark.parametrize("fits", [0, 30, 1.0, 1.5])
def test_a_full_disk_is_logged_once_and_what_was_not_written_is_written_later(tmp_path, monkeypatch, caplog, fits):
    first = Run(tmp_path)
    assert first.take(1) == {"w": 1}
    size = len(message(2))

    def full(file, data):
        room = int(fits * size) if isinstance(fits, float) else fits
        file.write(bytes(data)[:room])
        no_room()

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        stored = {**first.take(2, 3, now=2.0), **first.take(4, now=3.0), **first.take(5, now=50.0)}
        assert stored == {"w": 1}
        assert first.training.total_samples == 50
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "No space left on device" in line
    assert first.write(now=51.0) == {}  # it was tried a second ago
    assert first.write(now=70.0) == {"w": 5}
    first.kill()
    second = Run(tmp_path)
    assert numbers(second.memory) == list(range(50))
    assert second.training.total_samples == 50


def test_a_checkpoint_does_not_count_what_comes_again(tmp_path, monkeypatch):
    first = Run(tmp_path)
    first.take(1)
    with monkeypatch.context() as patch:
        patch.setattr(SampleStore, "is_settled", lambda *_: False)
        assert first.take(2) == {"w": 1}
        assert first.training.total_samples == 20
        first.save()
        first.kill()
    second = Run(tmp_path)
    assert second.training.total_samples == 10
    assert second.take(2) == {"w": 2}
    assert (numbers(second.memory), second.training.total_samples) == (list(range(20)), 20)


def test_after_a_full_disk_the_log_takes_as_much_of_what_waited_as_there_is_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(receiver, "_GROUP_BYTES", 1)
    first = Run(tmp_path)
    first.take(1)
    room = 0

    def full(file, data):
        nonlocal room
        if room < len(data):
            no_room()
        room -= len(data)
        write_whole(file, data)

    monkeypatch.setattr(disk, "write", full)
    assert first.take(*range(2, 50), now=1.0) == {"w": 1}
    room = sum(path.stat().st_size for path in (tmp_path / "log").glob("*.log")) * 7 // 2
    assert first.write(now=20.0) == {"w": 4}
    room = 10**9
    assert first.write(now=40.0) == {"w": 49}
    first.kill()
    assert numbers(Run(tmp_path).memory) == list(range(490))


@pytest.mark.fault(
    "disk",
    "the trainer's disk is full",
    "training goes on, one line says so, and what waited is written when there is room",
)
def test_a_full_file_system_costs_neither_training_nor_samples(tmp_path, full_disk):
    first = Run(tmp_path / "disk" / "run")
    assert first.take(1) == {"w": 1}
    ballast = full_disk()
    for number in range(2, 101):  # the last blocks have room for some
        acknowledged = first.take(number, now=20.0 * number)
    assert acknowledged["w"] < 100
    assert len(first.memory) == 999
    ballast.unlink()
    assert first.write(now=10_000.0) == {"w": 100}
    first.kill()
    assert numbers(Run(tmp_path / "disk" / "run").memory) == list(range(1000))


def test_samples_go_into_another_kind_of_memory(tmp_path):
    run_before(tmp_path, 1, 2, updates=7)
    second = Run(tmp_path, ListMemory)
    assert numbers(second.memory) == list(range(20))
    second.kill()
    assert len(Run(tmp_path, ReplayMemory).memory) == 19


def test_what_was_dropped_as_stale_is_not_joined_over_a_restart_either(tmp_path):
    for kills in (False, True):
        run = Run(tmp_path / str(kills))
        run.take(1)
        data = message(2)
        packet, body = m.decode(data)
        (dropped,) = run.receiver.take(packet, body, data, 1.0, lambda packet: False)
        run.receiver.confirm([dropped.receipt])
        assert run.write(2.0) == {"w": 2}
        if kills:
            run.kill()
            run = Run(tmp_path / str(kills))
        run.take(3, oldest=21)  # the worker has forgotten what was acknowledged
        assert numbers(run.memory) == [*range(10), *range(20, 30)]
        assert len(run.memory) == 18


# -- a checkpoint in a format of the user's own ------------------------------------------------------


class OwnFormat:
    """Pickles what a `ListMemory` holds, and the counters."""

    def __init__(self):
        self.before = self.then = lambda: None

    def dump(self, training, path):
        self.before()
        state = training.memory.data, training.total_samples, training.total_updates, training.kept
        write_atomically(path, pickle.dumps(state))
        self.then()

    def load(self, path):
        training = TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2), CountingAgent)
        state = pickle.loads(path.read_bytes())  # noqa: S301
        training.memory.data, training.total_samples, training.total_updates, training.kept = state
        return training

    def run(self, path):
        return Run(path, ListMemory, dump=self.dump, load=self.load)


@pytest.mark.fault(
    "processes", "the trainer is killed around a checkpoint of the user's own format", "no sample is lost or doubled"
)
@pytest.mark.parametrize("dies", ["before it is dumped", "in the dump", "once it is dumped", "later"])
def test_a_kill_around_a_dump_in_a_format_of_ones_own_neither_loses_nor_doubles_samples(tmp_path, dies):
    def die():
        raise KeyboardInterrupt

    own, path = OwnFormat(), tmp_path / "mine"
    first = own.run(path)
    first.take(1, 2)
    first.save()
    first.take(3, 4)
    if dies == "later":
        first.save()
        first.take(5)
    elif dies != "before it is dumped":
        setattr(own, "before" if dies == "in the dump" else "then", die)
        with pytest.raises(KeyboardInterrupt):
            first.save()
    first.kill()
    own.before = own.then = lambda: None
    second = own.run(path)
    expected = 50 if dies == "later" else 40
    assert numbers(second.memory) == list(range(expected))
    assert second.training.total_samples == expected
    number = expected // 10
    assert second.take(number, number + 1) == {"w": number + 1}
    assert numbers(second.memory) == list(range(expected + 10))


@pytest.mark.parametrize("with_memory", [True, False])
def test_what_is_restored_without_what_says_which_samples_it_has_has_none_twice(tmp_path, caplog, with_memory):
    own, path = OwnFormat(), tmp_path / "mine"
    first = own.run(path)
    first.take(1, 2)
    first.save()
    first.take(3)
    first.kill()

    def load(path):
        training = own.load(path) if with_memory else TrainingOffline(CountingEnv, ListMemory, CountingAgent)
        training.kept = Kept()
        return training

    second = Run(path, ListMemory, dump=own.dump, load=load)
    assert numbers(second.memory) == list(range(20 if with_memory else 30))
    assert ("those stored in" in caplog.text) == with_memory
    assert second.training.total_samples == 30
    assert second.take(3, 4) == {"w": 4}
    assert numbers(second.memory)[-10:] == list(range(30, 40))


def test_what_the_memory_held_back_is_in_a_dump(tmp_path):
    dumped = []
    own = {"dump": lambda training, path: dumped.append([int(sample.rew) for sample in training.memory.data])}
    first = Run(tmp_path / "mine", ListMemory, **own)
    first.take(1)
    first.take(1, worker="other", n=3)
    assert len(first.memory.data) == 10
    first.save()
    assert sorted(dumped[0]) == sorted([*range(10), *range(3)])


@pytest.fixture
def driven(house):
    """A house with a server, and a worker that drives."""
    house.server()
    house.start(house.worker(STEADY, outbox=SOON).run)
    return house


def take_until(trainer, samples):
    """Put what arrives into the memory, and train on nothing."""
    training = trainer.training
    training.start_training = 10**9
    training.run_epoch(trainer.link, should_stop=lambda: training.total_samples >= samples)


def steps_of(memory):
    """(episode, step) of the samples in transitions, sorted; none of them is there twice."""
    transitions = [memory.get_transition(k) for k in range(len(memory))]
    first, then = (
        [tuple(obs.astype(int).tolist()) for obs in column]
        for column in zip(*((t.last_obs, t.obs) for t in transitions), strict=True)
    )
    assert len(set(then)) == len(then)
    return sorted({*first, *then})


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
    until(lambda: not worker.link.status.unacknowledged_samples)  # and there is no checkpoint
    assert not list(tmp_path.glob("checkpoint-*"))
    first.link.retrieve(0.1)
    first.close()
    house.start(worker.run, nb_episodes=10)
    second = house.trainer(ReplayMemory, checkpoint_path=tmp_path)
    assert second.training.total_samples == 220
    take_until(second, 330)
    steps = steps_of(second.training.memory)
    assert (len(steps), steps[0], is_gapless(steps)) == (330, (1, 0), True)


def test_a_second_trainer_in_the_same_folder_is_one_line(tmp_path):
    Run(tmp_path)
    with pytest.raises(CheckpointError, match="in use by another trainer"):
        Run(tmp_path)


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


@pytest.fixture
def slow_disk(monkeypatch):
    """Checkpoints are written when the event is set."""
    may_write, real = threading.Event(), checkpoint_file.write_atomically

    def write(*arguments):
        assert may_write.wait(60)
        real(*arguments)

    monkeypatch.setattr(checkpoint_file, "write_atomically", write)
    yield may_write
    may_write.set()


@pytest.mark.fault("disk", "the trainer's disk is slow", "training does not wait for it")
@pytest.mark.parametrize("memory_cls", [ReplayMemory, ListMemory])
def test_training_does_not_wait_for_the_disk(driven, tmp_path, until, slow_disk, memory_cls):
    trainer = driven.trainer(memory_cls, checkpoint_path=tmp_path, training={"epochs": 5})
    running = driven.start(trainer.run)
    until(lambda: trainer.training.total_updates == 100)  # five epochs, while the first checkpoint is being written
    assert not list(tmp_path.glob("checkpoint-*"))
    slow_disk.set()
    running.join()
    trainer.close()
    last = driven.trainer(memory_cls, checkpoint_path=tmp_path, training={"epochs": 6})
    assert (last.training.total_updates, last.training.epoch, last.training.agent.steps) == (100, 5, 100)


def test_closing_waits_for_the_thread_that_trains_and_for_its_checkpoint(driven, tmp_path, until, slow_disk):
    trainer = driven.trainer(checkpoint_path=tmp_path, training={"epochs": 1000})
    running = driven.start(trainer.run)
    until(lambda: trainer.training.epoch >= 2)
    closing = driven.start(trainer.close)
    running.join(0.5)
    assert running.is_alive()  # in the last checkpoint, which is held up by the one before
    assert closing.is_alive()
    slow_disk.set()
    closing.join()
    assert not running.is_alive()
    assert driven.trainer(checkpoint_path=tmp_path).training.epoch == trainer.training.epoch


def test_a_full_disk_is_reported_once_training_goes_on_and_the_run_ends_with_it(driven, tmp_path, monkeypatch, caplog):
    trainer = driven.trainer(checkpoint_path=tmp_path, training={"epochs": 4})
    monkeypatch.setattr(checkpoint_file, "write_atomically", no_room)
    with pytest.raises(CheckpointError, match=r"last checkpoint.*No space left on device"):
        trainer.run()
    said = [r.message for r in caplog.records if "cannot write the checkpoint" in r.message]
    assert len(said) == 1
    assert "No space left on device; training goes on" in said[0]
    assert trainer.training.total_updates == 80
    monkeypatch.undo()
    trainer.save_checkpoint()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


def test_what_cannot_be_written_ends_the_run_with_its_name(driven, tmp_path):
    class Odd(CountingAgent):
        def state_dict(self):
            return {"odd": threading.Lock()}

    trainer = driven.trainer(checkpoint_path=tmp_path, training={"training_agent_cls": Odd})
    with pytest.raises(TypeError, match="lock"):
        trainer.run()


def test_a_checkpoint_in_a_format_of_ones_own_goes_on_with_what_came_after_it(driven, tmp_path):
    own = OwnFormat()
    options = {"dump_run_instance_fn": own.dump, "load_run_instance_fn": own.load, "checkpoint_path": tmp_path / "mine"}
    first = driven.trainer(**options)
    take_until(first, 50)
    first.save_checkpoint()
    take_until(first, 80)
    first.close()
    second = driven.trainer(**options)
    take_until(second, 150)
    assert is_gapless([tuple(sample.obs.astype(int).tolist()) for sample in second.training.memory.data])


def test_what_a_checkpoint_under_way_raises_is_reported_at_close(zmq_house, tmp_path, monkeypatch, caplog):
    may_fail = threading.Event()

    def write(self, path):
        assert threading.current_thread() is not threading.main_thread()
        assert may_fail.wait(20)
        raise EncodingError("memory.odd is a builtins.object")

    monkeypatch.setattr(Snapshot, "write", write)
    trainer = zmq_house.trainer(checkpoint_path=tmp_path)
    trainer._checkpoints.save(trainer.training, 1)
    may_fail.set()
    trainer.close()
    trainer.close()
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert "memory.odd is a builtins.object" in said
    assert str(tmp_path) in said


class Diverging(CountingAgent):
    """Adds 1 to the bias, until `after` steps are done; then what it learns is no number."""

    def __init__(self, observation_space, action_space, device="cpu", after=15, where="actor"):
        super().__init__(observation_space, action_space, device)
        self.critics = [torch.nn.Linear(2, 1)]
        self._after, self._where = after, where

    def train(self, batch):
        metrics = super().train(batch)
        if self.steps > self._after:
            module = self.actor.layer if self._where == "actor" else self.critics[0]
            with torch.no_grad():
                module.bias.fill_(float("nan"))
        return metrics


@pytest.mark.fault(
    "robots", "training diverges to NaN", "the weights are neither published nor written, and training ends in one line"
)
@pytest.mark.parametrize("where", ["actor", "critic"])
def test_weights_that_are_not_finite_are_neither_published_nor_written_and_end_training(driven, tmp_path, where):
    path = tmp_path / "checkpoint"
    training = {"training_agent_cls": partial(Diverging, where=where), "rounds": 1, "epochs": 3}
    trainer = driven.trainer(ReplayMemory, training, checkpoint_path=path, model_path=tmp_path / "published")
    with pytest.raises(
        DivergedError,
        match=r"training has diverged: (layer|actor\.layer|critics\[0\])\.bias holds values that are not finite",
    ):
        trainer.run()
    with pytest.raises(DivergedError):
        trainer.save_checkpoint()
    trainer.close()
    spaces = trainer.training.observation_space, trainer.training.action_space
    assert LinearActor(*spaces).load(tmp_path / "published").layer.bias.isfinite().all()
    resumed = driven.trainer(ReplayMemory, training, checkpoint_path=path)
    assert resumed.training.agent.steps == resumed.training.total_updates == 10
    assert torch.isfinite(resumed.training.agent.actor.layer.bias).all()
    assert torch.isfinite(resumed.training.agent.critics[0].bias).all()


def test_checkpoints_may_be_limited_by_time_and_the_last_one_is_written(driven, tmp_path, monkeypatch):
    options = TrainerOptions(checkpoint_interval_s=1e6)
    training = {"rounds": 1, "epochs": 4}
    trainer = driven.trainer(ReplayMemory, training, checkpoint_path=tmp_path / "checkpoint", options=options)
    saved = []
    monkeypatch.setattr(trainer._checkpoints, "save", lambda to, *_, **__: saved.append(to.epoch))
    trainer.run()
    assert saved == [1, 4]
