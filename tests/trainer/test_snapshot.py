"""Checkpoints of what was learnt: what is restored, and what happens where one is damaged or cannot be written."""

import errno
import os
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_like.base.files import disk
from tmrl_like.base.functional import partial
from tmrl_like.errors import CheckpointError
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.snapshot import FORMAT, load_checkpoint, read_manifest, take_snapshot
from tmrl_like.types import Buffer, EpisodeStats, Info, Sample


def training(**memory: Any) -> TrainingOffline:
    return TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2, **memory), CountingAgent)


def take(one: TrainingOffline, n: int = 10) -> None:
    """Append n samples."""
    rows = [Sample(np.float32([k]), np.float32([k, k]), float(k), False, False, Info()) for k in range(n)]
    one.memory.append(Buffer(rows, "w"))
    one.total_samples += n


def train(one: TrainingOffline) -> None:
    one.agent.train(one.memory.sample())
    one.total_updates += 1


def steps_of(one: TrainingOffline) -> tuple[int, int]:
    """Training steps as the agent and as the training count them."""
    return one.agent.steps, one.total_updates  # type: ignore[attr-defined]


def saved(folder: Path, times: int = 2) -> None:
    """A folder with checkpoints 1 to `times`, of 10 samples and 1 training step more each."""
    one = training()
    for _ in range(times):
        take(one)
        train(one)
        take_snapshot(one, {}, "run").write(folder)


def test_agent_and_counters_are_restored_and_the_memory_stays_as_it_is(tmp_path: Path) -> None:
    one = training()
    take(one)
    train(one)
    one.epoch, one.round, one.pacer.recorded_samples, one.pacer.unpaced_steps = 3, 2, 5, 1
    one.elapsed_s = 600.0
    take_snapshot(one, {"version": 3}, "run").write(tmp_path)
    train(one)
    two = training()
    take(two, 4)
    assert load_checkpoint(two, tmp_path) == {"version": 3}
    assert float(two.agent.get_actor().state_dict()["layer.bias"]) == 1.0
    assert (steps_of(two), two.total_samples) == ((1, 1), 10)
    assert (two.epoch, two.round, two.pacer.recorded_samples, two.pacer.unpaced_steps) == (3, 2, 5, 1)
    assert two.elapsed_s >= 600.0
    assert len(two.memory.data) == 4
    manifest = read_manifest(tmp_path)
    assert manifest is not None
    assert (manifest.run, manifest.number, manifest.training_steps) == ("run", 1, 1)


def test_returns_go_on(tmp_path: Path) -> None:
    one, two = training(), training()
    one.diagnosis.add(
        EpisodeStats("w", test, float(k), 9, False, True, 0.0, 1) for k in range(20) for test in (False, True)
    )
    one.diagnosis.returns.begin(50_000)
    assert one.diagnosis.returns.have_risen()
    snapshot = take_snapshot(one)
    one.diagnosis.add([EpisodeStats("w", False, 0.0, 9, False, True, 0.0, 1)])
    snapshot.write(tmp_path)
    load_checkpoint(two, tmp_path)
    returns = two.diagnosis.returns
    assert (returns.starts_well, returns.has_begun, returns.count) == (True, True, 40)
    assert returns.newest == {"train": [*range(2, 20)], "test": [*range(2, 20)]}
    assert returns.have_risen()


def test_all_random_generators_go_on_where_they_stood(tmp_path: Path) -> None:
    def draws(one: TrainingOffline) -> list[float]:
        return [random.random(), np.random.random(), float(torch.rand(())), one.memory.rng.random()]

    one = training()
    take_snapshot(one).write(tmp_path)
    expected = draws(one)
    two = training()
    load_checkpoint(two, tmp_path)
    assert draws(two) == expected


def test_a_folder_holds_two_checkpoints_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()  # the samples, which are not a checkpoint's
    saved(tmp_path, 4)
    assert {p.name for p in tmp_path.iterdir()} == {
        *("manifest.json", "manifest-before.json", "training-3.pt", "training-4.pt", "log")
    }


def test_a_snapshot_does_not_change_while_training_goes_on(tmp_path: Path) -> None:
    one = training()
    take(one)
    train(one)
    snapshot = take_snapshot(one)
    train(one)
    take(one, 5)
    snapshot.write(tmp_path)
    two = training()
    load_checkpoint(two, tmp_path)
    assert float(two.agent.get_actor().state_dict()["layer.bias"]) == 1.0
    assert (steps_of(two), two.total_samples) == ((1, 1), 10)


def test_an_optimiser_in_a_snapshot_is_a_copy(tmp_path: Path) -> None:
    class Agent(CountingAgent):
        def __init__(self, observation_space: Any, action_space: Any, device: str = "cpu") -> None:
            super().__init__(observation_space, action_space, device)
            self.optimiser = torch.optim.Adam(self.actor.parameters())

        def train(self, batch: Any) -> dict[str, Any]:
            self.optimiser.zero_grad()
            sum(p.sum() for p in self.actor.parameters()).backward()
            self.optimiser.step()
            return {}

    one = TrainingOffline(CountingEnv, ListMemory, Agent)
    one.agent.train(None)  # type: ignore[arg-type]
    before = one.agent.optimiser.state_dict()["state"][0]["exp_avg"].clone()  # type: ignore[attr-defined]
    snapshot = take_snapshot(one)
    one.agent.train(None)  # type: ignore[arg-type]
    snapshot.write(tmp_path)
    two = TrainingOffline(CountingEnv, ListMemory, Agent)
    load_checkpoint(two, tmp_path)
    restored = two.agent.optimiser.state_dict()["state"][0]["exp_avg"]  # type: ignore[attr-defined]
    assert torch.equal(restored, before)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _of_format(number: int, path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format":%d' % FORMAT, b'"format":%d' % number))


DAMAGES = {
    "manifest cut": ("manifest.json", _cut),
    "manifest of a newer version": ("manifest.json", partial(_of_format, FORMAT + 1)),
    "manifest of the version before": ("manifest.json", partial(_of_format, FORMAT - 1)),
    "agent flipped": ("training-1.pt", _flip),
    "agent cut": ("training-1.pt", _cut),
    "agent gone": ("training-1.pt", Path.unlink),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    saved(tmp_path, 1)
    name, do = DAMAGES[damage]
    do(tmp_path / name)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(training(), tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_checkpoint_of_another_agent_is_one_clear_line(tmp_path: Path) -> None:
    class Other(CountingAgent):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            del self.steps

    saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="'steps'") as caught:
        load_checkpoint(TrainingOffline(CountingEnv, ListMemory, Other), tmp_path)
    assert "\n" not in str(caught.value)


def test_a_part_that_the_agent_no_longer_has_is_one_clear_line(tmp_path: Path) -> None:
    one, two = training(), training()
    one.agent.average, two.agent.average = torch.nn.Linear(1, 1), None  # type: ignore[attr-defined]
    take_snapshot(one).write(tmp_path)
    with pytest.raises(CheckpointError, match="give the experiment the values that it was made with") as caught:
        load_checkpoint(two, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.fault("disk", "the disk is full while a checkpoint is written", "the one before stays whole")
def test_a_full_file_system_is_one_line_and_the_checkpoint_before_stays_whole(tmp_path: Path, full_disk: Any) -> None:
    folder = tmp_path / "disk" / "run"
    saved(folder, 2)
    full_disk()
    one = training()
    load_checkpoint(one, folder)
    with pytest.raises(CheckpointError, match="No space left"):
        take_snapshot(one, {}, "run").write(folder)
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
@pytest.mark.parametrize("name", ["training-3.pt", "manifest.json"])
def test_what_ends_in_the_middle_of_writing_leaves_the_checkpoint_before_and_an_error_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, ends_with: BaseException, raised: Any
) -> None:
    saved(tmp_path, 2)
    before = sorted(tmp_path.iterdir())
    replace = os.replace

    def fails(source: Any, target: Any) -> None:
        if Path(target).name == name:
            raise ends_with
        replace(source, target)

    one = training()
    load_checkpoint(one, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fails)
        with raised as caught:
            take_snapshot(one, {}, "run").write(tmp_path)
    assert "\n" not in str(caught.value)
    if isinstance(ends_with, OSError):
        assert sorted(tmp_path.iterdir()) == before
    two = training()
    load_checkpoint(two, tmp_path)
    assert steps_of(two) == (2, 2)


def test_writing_in_another_thread_does_not_need_the_training(tmp_path: Path) -> None:
    one = training()
    take(one)
    snapshots = []
    for k in range(20):
        train(one)
        snapshots.append(take_snapshot(one, {"k": k}, "run"))
    writer = threading.Thread(target=lambda: [snapshot.write(tmp_path) for snapshot in snapshots])
    writer.start()
    for _ in range(200):
        take(one)
        train(one)
    writer.join()
    two = training()
    assert load_checkpoint(two, tmp_path) == {"k": 19}
    assert steps_of(two) == (20, 20)


def test_training_files_without_their_manifest_are_neither_passed_over_nor_replaced(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "manifest.json").unlink()
    before = sorted(tmp_path.iterdir())
    for call in (
        lambda: read_manifest(tmp_path),
        lambda: load_checkpoint(training(), tmp_path),
        lambda: take_snapshot(training()).write(tmp_path),
    ):
        with pytest.raises(CheckpointError, match=r"manifest\.json is missing, but training-2\.pt is there") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_kill_in_the_very_first_checkpoint_is_not_a_missing_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = training()
    take(one)
    replace = os.replace

    def killed(source: Any, target: Any) -> None:
        if str(target).endswith("manifest.json") and (tmp_path / "training-1.pt").exists():
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            take_snapshot(one).write(tmp_path)
    assert (tmp_path / "training-1.pt").exists()
    assert read_manifest(tmp_path) is None
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(training(), tmp_path)
    one.total_updates = 7
    take_snapshot(one).write(tmp_path)
    two = training()
    load_checkpoint(two, tmp_path)
    assert two.total_updates == 7


@pytest.mark.fault("disk", "a checkpoint is damaged", "the one before is taken, and one line says so")
@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink], ids=["cut", "flipped", "gone"])
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    saved(tmp_path, times=3)
    damage(tmp_path / "training-3.pt")
    two = training()
    load_checkpoint(two, tmp_path)
    assert (steps_of(two), two.total_samples) == ((2, 2), 20)
    (logged,) = [r.getMessage() for r in caplog.records]
    assert "checkpoint 3" in logged
    assert "going on from checkpoint 2" in logged
    assert "\n" not in logged


def test_where_both_checkpoints_are_damaged_nothing_is_taken(tmp_path: Path) -> None:
    saved(tmp_path)
    _flip(tmp_path / "training-1.pt")
    _cut(tmp_path / "training-2.pt")
    with pytest.raises(CheckpointError, match=r"training-2\.pt"):
        load_checkpoint(training(), tmp_path)


def test_the_checkpoint_of_another_run_is_not_an_older_generation(tmp_path: Path) -> None:
    one = training()
    take_snapshot(one, {}, "first").write(tmp_path)
    take_snapshot(one, {}, "second").write(tmp_path)
    _cut(tmp_path / "training-2.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(training(), tmp_path)


def test_a_checkpoint_is_on_the_disk_before_the_manifest_names_it_and_the_manifest_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = training()
    take_snapshot(one).write(tmp_path)
    events: list[str] = []
    monkeypatch.setattr(disk, "sync", lambda file: events.append("file"))
    monkeypatch.setattr(disk, "sync_folder", lambda path: events.append("folder" if path == tmp_path else str(path)))
    monkeypatch.setattr(disk, "rename", lambda source, path: os.replace(source, path) or events.append(path.name))
    take_snapshot(one).write(tmp_path)
    expected = ["file", "manifest-before.json", "file", "training-2.pt", "folder", "file", "manifest.json", "folder"]
    assert events == expected


def test_a_resumed_agent_keeps_the_arguments_of_its_new_script(tmp_path: Path) -> None:
    class Agent(CountingAgent):
        def __init__(self, observation_space: Any, action_space: Any, device: str = "cpu", gamma: float = 0.9) -> None:
            super().__init__(observation_space, action_space, device)
            self.gamma = gamma

    def make(gamma: float) -> TrainingOffline:
        return TrainingOffline(CountingEnv, partial(ListMemory, batch_size=2), partial(Agent, gamma=gamma))

    one = make(0.9)
    one.agent.steps = 7  # type: ignore[attr-defined]
    take_snapshot(one).write(tmp_path)
    two = make(0.5)
    load_checkpoint(two, tmp_path)
    assert (two.agent.gamma, two.agent.steps) == (0.5, 7)  # type: ignore[attr-defined]
