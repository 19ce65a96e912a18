"""Checkpoints of what was learnt: what is restored, and what happens where one is damaged or cannot be written."""

import errno
import os
import random

import msgspec
import numpy as np
import pytest
import torch
from kit.episodes import episode

from tmrl_like.base.checked import checked_json
from tmrl_like.base.files import disk
from tmrl_like.base.functional import partial
from tmrl_like.errors import CheckpointError
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.trainer.checkpoint_file import FORMAT, Head, read_head, remove_checkpoints
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import load_checkpoint, take_snapshot
from tmrl_like.types import Buffer, Info, Sample


def training(**memory):
    return TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2, **memory), CountingAgent)


def take(one, n=10):
    """Append n samples."""
    rows = [Sample(np.float32([k]), np.float32([k, k]), float(k), False, False, Info()) for k in range(n)]
    one.memory.append(Buffer(rows, "w"))
    one.total_samples += n


def train(one):
    one.agent.train(one.memory.sample())
    one.total_updates += 1


def steps_of(one):
    """Training steps as the agent and as the training count them."""
    return one.agent.steps, one.total_updates


def saved(folder, times=2):
    """A folder with checkpoints 1 to `times`, of 10 samples and 1 training step more each."""
    one = training()
    for _ in range(times):
        take(one)
        train(one)
        take_snapshot(one, "run").write(folder)


def test_agent_and_counters_are_restored_and_the_memory_stays_as_it_is(tmp_path):
    one = training()
    take(one)
    train(one)
    one.epoch, one.round, one.pacer.recorded_samples, one.pacer.unpaced_steps = 3, 2, 5, 1
    one.elapsed_s = 600.0
    one.kept.version = 3
    take_snapshot(one, "run", unstored_samples=3).write(tmp_path)
    train(one)
    two = training()
    take(two, 4)
    head = load_checkpoint(two, tmp_path)
    assert head == read_head(tmp_path)
    assert (head.run, head.number, head.training_steps, head.epoch) == ("run", 1, 1, 3)
    assert (head.elapsed_s, two.kept.version) == (pytest.approx(600.0, abs=60), 3)
    assert float(two.agent.get_actor().state_dict()["layer.bias"]) == 1.0
    assert (steps_of(two), two.total_samples) == ((1, 1), 7)
    assert (two.epoch, two.round, two.pacer.recorded_samples, two.pacer.unpaced_steps) == (3, 2, 5, 1)
    assert two.elapsed_s >= 600.0
    assert len(two.memory.data) == 4


def test_returns_go_on(tmp_path):
    one, two = training(), training()
    one.diagnosis.add(episode(return_=float(k), test=test) for k in range(20) for test in (False, True))
    one.diagnosis.returns.begin(50_000)
    assert one.diagnosis.returns.have_risen()
    snapshot = take_snapshot(one)
    one.diagnosis.add([episode()])
    snapshot.write(tmp_path)
    load_checkpoint(two, tmp_path)
    returns = two.diagnosis.returns
    assert (returns.starts_well, returns.has_begun, returns.count) == (True, True, 40)
    assert returns.kept == {"train": [*range(20)], "test": [*range(20)]}
    assert returns.have_risen()


def test_all_random_generators_go_on_where_they_stood(tmp_path):
    def draws(one):
        return [random.random(), np.random.random(), float(torch.rand(())), one.memory.rng.random()]

    one = training()
    take_snapshot(one).write(tmp_path)
    expected = draws(one)
    two = training()
    load_checkpoint(two, tmp_path)
    assert draws(two) == expected


def test_a_folder_holds_two_checkpoints_and_nothing_else(tmp_path):
    (tmp_path / "log").mkdir()  # the samples, which are not a checkpoint's
    saved(tmp_path, 4)
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint-3", "checkpoint-4", "log"}


class Optimised(CountingAgent):
    """An optimiser counts with it."""

    def __init__(self, observation_space, action_space, device="cpu"):
        super().__init__(observation_space, action_space, device)
        self.optimiser = torch.optim.Adam(self.actor.parameters())

    def train(self, batch):
        self.optimiser.zero_grad()
        sum(p.sum() for p in self.actor.parameters()).backward()
        self.optimiser.step()
        return super().train(batch)

    def moments(self):
        return [moment.item() for moment in self.optimiser.state[self.actor.layer.bias].values()]


def test_a_snapshot_does_not_change_while_training_goes_on(tmp_path):
    one, two = (TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2), Optimised) for _ in range(2))
    take(one)
    train(one)
    bias, moments = one.agent.actor.layer.bias.item(), one.agent.moments()
    snapshot = take_snapshot(one)
    train(one)
    take(one, 5)
    assert (one.agent.actor.layer.bias.item(), one.agent.moments()) != (bias, moments)
    snapshot.write(tmp_path)
    load_checkpoint(two, tmp_path)
    assert (two.agent.actor.layer.bias.item(), two.agent.moments()) == (bias, moments)
    assert (steps_of(two), two.total_samples) == ((1, 1), 10)


def _flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def _cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("content", [b"", b"\n", b"{}\n", b"\0" * 100_000, b"PK\3\4 of somebody else\n"])
def test_a_file_that_is_none_of_ours_is_passed_over_and_alone_it_is_one_clear_line(tmp_path, content):
    saved(tmp_path, 1)
    (tmp_path / "checkpoint-2").write_bytes(content)
    (tmp_path / "checkpoint-of-mine").write_bytes(content)
    two = training()
    load_checkpoint(two, tmp_path)
    assert steps_of(two) == (1, 1)
    (tmp_path / "checkpoint-1").unlink()
    (tmp_path / "checkpoint-2").write_bytes(content)  # it was put aside
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(training(), tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_checkpoint_of_another_agent_is_one_clear_line(tmp_path):
    class Other(CountingAgent):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            del self.steps

    saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="'steps'") as caught:
        load_checkpoint(TrainingOffline(CountingEnv, ListMemory, Other), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_part_that_the_agent_no_longer_has_is_one_clear_line(tmp_path):
    one, two = training(), training()
    one.agent.average, two.agent.average = torch.nn.Linear(1, 1), None
    take_snapshot(one).write(tmp_path)
    with pytest.raises(CheckpointError, match="give the experiment the values that it was made with") as caught:
        load_checkpoint(two, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.fault("disk", "the disk is full while a checkpoint is written", "the one before stays whole")
def test_a_full_file_system_is_one_line_and_the_checkpoint_before_stays_whole(tmp_path, full_disk):
    folder = tmp_path / "disk" / "run"
    saved(folder, 2)
    full_disk()
    one = training()
    load_checkpoint(one, folder)
    with pytest.raises(CheckpointError, match="No space left"):
        take_snapshot(one, "run").write(folder)
    two = training()
    load_checkpoint(two, folder)
    assert steps_of(two) == (2, 2)


@pytest.mark.fault("processes", "the trainer is killed while it writes a checkpoint", "the one before is whole")
@pytest.mark.parametrize(
    ("ends_with", "raised"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), pytest.raises(CheckpointError, match="No space left on")),
        (KeyboardInterrupt(), pytest.raises(KeyboardInterrupt)),
    ],
    ids=["full", "killed"],
)
def test_what_ends_in_the_middle_of_writing_leaves_the_checkpoint_before_and_an_error_no_draft(
    tmp_path, monkeypatch, ends_with, raised
):
    saved(tmp_path, 2)
    before = sorted(tmp_path.iterdir())

    def fails(source, target):
        raise ends_with

    one = training()
    load_checkpoint(one, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fails)
        with raised as caught:
            take_snapshot(one, "run").write(tmp_path)
    assert "\n" not in str(caught.value)
    if isinstance(ends_with, OSError):
        assert sorted(tmp_path.iterdir()) == before
    two = training()
    load_checkpoint(two, tmp_path)
    assert steps_of(two) == (2, 2)


def test_a_checkpoint_of_another_format_is_one_clear_line_and_can_be_given_up(tmp_path):
    saved(tmp_path, 1)
    head, body = (tmp_path / "checkpoint-1").read_bytes().split(b"\n", 1)
    newer = msgspec.json.decode(head, type=Head)
    newer.format += 1
    (tmp_path / "checkpoint-1").write_bytes(checked_json(newer) + b"\n" + body)
    with pytest.raises(CheckpointError, match=f"has format {FORMAT + 1}, and this tmrl_like reads {FORMAT}"):
        load_checkpoint(training(), tmp_path)
    remove_checkpoints(tmp_path)
    assert load_checkpoint(training(), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_what_is_given_up_part_by_part_is_the_newest_until_nothing_is_left(tmp_path, monkeypatch):
    saved(tmp_path, 3)
    left, remove = [], disk.remove
    monkeypatch.setattr(disk, "remove", lambda path: remove(path) or left.append(read_head(tmp_path)))
    remove_checkpoints(tmp_path)
    assert [head and head.number for head in left] == [3, None]


@pytest.mark.fault("disk", "a checkpoint is damaged", "the one before is taken, and one line says so")
@pytest.mark.parametrize("damage", [_cut, _flip], ids=["cut", "flipped"])
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_taken(tmp_path, caplog, damage):
    saved(tmp_path, times=3)
    damage(tmp_path / "checkpoint-3")
    two = training()
    load_checkpoint(two, tmp_path)
    assert (steps_of(two), two.total_samples) == ((2, 2), 20)
    (logged,) = [r.getMessage() for r in caplog.records]
    assert "checkpoint 3" in logged
    assert "going on from checkpoint 2" in logged
    assert "\n" not in logged
    take_snapshot(two).write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-2", "checkpoint-3", "damaged-checkpoint-3"}


def test_where_both_checkpoints_are_damaged_nothing_is_taken(tmp_path):
    saved(tmp_path)
    _flip(tmp_path / "checkpoint-1")
    _cut(tmp_path / "checkpoint-2")
    with pytest.raises(CheckpointError, match=r"checkpoint 2 .* is damaged .* there is no other one"):
        load_checkpoint(training(), tmp_path)


def test_a_checkpoint_has_its_name_when_it_is_on_the_disk_and_the_oldest_goes_then(tmp_path, monkeypatch):
    saved(tmp_path, 2)
    events = []
    monkeypatch.setattr(disk, "sync", lambda file: events.append("file"))
    monkeypatch.setattr(disk, "sync_folder", lambda path: events.append("folder" if path == tmp_path else str(path)))
    monkeypatch.setattr(disk, "rename", lambda source, path: os.replace(source, path) or events.append(path.name))
    monkeypatch.setattr(disk, "remove", lambda path: path.unlink() or events.append(f"no {path.name}"))
    take_snapshot(training()).write(tmp_path)
    assert events == ["file", "checkpoint-3", "folder", "no checkpoint-1"]


def test_a_resumed_agent_keeps_the_arguments_of_its_new_script(tmp_path):
    class Agent(CountingAgent):
        def __init__(self, observation_space, action_space, device="cpu", gamma=0.9):
            super().__init__(observation_space, action_space, device)
            self.gamma = gamma

    def make(gamma):
        return TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2), partial(Agent, gamma=gamma))

    one = make(0.9)
    one.agent.steps = 7
    take_snapshot(one).write(tmp_path)
    two = make(0.5)
    load_checkpoint(two, tmp_path)
    assert (two.agent.gamma, two.agent.steps) == (0.5, 7)
