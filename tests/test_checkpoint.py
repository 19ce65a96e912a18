"""Checkpoints with a memory that keeps its samples in files, and checkpoints that go wrong."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tmrl_like.checkpoint import has_checkpoint, load_checkpoint, new_run, save_checkpoint, take_snapshot
from tmrl_like.errors import CheckpointError
from tmrl_like.memories import Prioritised, ReplayMemory
from tmrl_like.testing.fakes import CountingAgent, CountingEnv, ListMemory
from tmrl_like.training_offline import TrainingOffline
from tmrl_like.types import Buffer, Info, Receipt, Sample
from tmrl_like.util import partial


def training(memory_cls: Any = ReplayMemory, **memory: Any) -> TrainingOffline:
    return TrainingOffline(CountingEnv, partial(memory_cls, batch_size=2, **memory), CountingAgent)


def take(one: TrainingOffline, first: int, n: int, sequence: int) -> bool:
    """Append n samples, numbered from `first` on, as packet `sequence`."""
    rows = [
        Sample(np.float32([k]), np.float32([k, k]), float(k), False, False, Info()) for k in range(first, first + n)
    ]
    one.memory.append(Buffer(rows, "w"))
    one.total_samples += n
    return one.memory.commit([Receipt("w", 1, sequence)])


def kept(folder: Path, run: str = "run", **memory: Any) -> TrainingOffline:
    one = training(**memory)
    one.memory.keep_in(folder, run)
    return one


def rewards(memory: Any) -> list[float]:
    return [memory.get_transition(k).rew for k in range(len(memory))]


def test_the_agent_is_that_of_the_checkpoint_and_the_samples_are_all_that_were_stored(tmp_path: Path) -> None:
    one = kept(tmp_path)
    assert take(one, 0, 10, 1)
    one.agent.train(one.memory.sample())
    one.total_updates = 1
    save_checkpoint(one, tmp_path, {"version": 3}, "run")
    one.agent.train(one.memory.sample())
    assert take(one, 10, 5, 2)
    one.memory.append(Buffer([Sample(np.float32([9]), np.float32([9, 9]), 9.0, False, False, Info())], "w"))
    one.memory.close()
    two = training()
    restored = load_checkpoint(two, tmp_path)
    assert restored.receipts == [Receipt("w", 1, 2)]
    assert (restored.extra, restored.run) == ({"version": 3}, "run")
    assert (two.agent.steps, two.total_updates, two.total_samples) == (1, 1, 15)  # type: ignore[attr-defined]
    assert rewards(two.memory) == [float(k) for k in range(1, 15)]
    two.memory.close()


def test_samples_of_a_memory_in_files_are_not_written_again(tmp_path: Path) -> None:
    one = kept(tmp_path)
    take(one, 0, 10, 1)
    save_checkpoint(one, tmp_path, {}, "run")
    save_checkpoint(one, tmp_path, {}, "run")
    one.memory.close()
    names = {"manifest.json", "training-1.pt", "training-2.pt", "replay-1", "replay.lock"}
    assert {p.name for p in tmp_path.iterdir()} == names


def test_a_run_that_ended_before_its_first_checkpoint_keeps_its_samples(tmp_path: Path) -> None:
    one = kept(tmp_path)
    assert not has_checkpoint(tmp_path)
    take(one, 0, 10, 1)
    assert has_checkpoint(tmp_path)
    one.memory.close()
    two = training()
    assert load_checkpoint(two, tmp_path).receipts == [Receipt("w", 1, 1)]
    assert (len(two.memory), two.total_samples, two.total_updates) == (9, 10, 0)
    two.memory.close()


def test_samples_of_a_run_that_began_anew_are_not_joined_with_the_agent_of_the_one_before(tmp_path: Path) -> None:
    one = kept(tmp_path, "first")
    take(one, 0, 10, 1)
    one.total_updates = 7
    save_checkpoint(one, tmp_path, {}, "first")
    one.memory.close()
    anew = kept(tmp_path, "second")
    take(anew, 100, 5, 1)
    anew.memory.close()
    two = training()
    assert load_checkpoint(two, tmp_path).run == "second"
    assert (two.total_updates, rewards(two.memory)) == (0, [101.0, 102.0, 103.0, 104.0])
    two.memory.close()


def test_a_memory_that_had_to_leave_its_files_is_in_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = kept(tmp_path)
    take(one, 0, 10, 1)

    def full_disk(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tmrl_like.memories.journal._write_all", full_disk)
    assert not take(one, 10, 5, 2)
    monkeypatch.undo()
    save_checkpoint(one, tmp_path, {"processes": [["w", 1, 2, 0, 0]]}, "run")
    assert not list(tmp_path.glob("replay-*"))
    two = training()
    restored = load_checkpoint(two, tmp_path)
    assert (restored.receipts, restored.run, len(two.memory), two.total_samples) == (None, "run", 14, 15)
    two.memory.keep_in(tmp_path, restored.run, [Receipt(*p) for p in restored.extra["processes"]])
    take(two, 15, 5, 3)
    two.memory.close()
    three = training()
    assert load_checkpoint(three, tmp_path).receipts == [Receipt("w", 1, 3)]
    assert len(three.memory) == 19
    three.memory.close()


def test_a_snapshot_does_not_change_while_training_goes_on(tmp_path: Path) -> None:
    for memory_cls in (ReplayMemory, ListMemory):
        one = training(memory_cls)
        take(one, 0, 10, 1)
        one.agent.train(one.memory.sample())
        snapshot = take_snapshot(one)
        one.agent.train(one.memory.sample())
        take(one, 10, 5, 2)
        snapshot.write(tmp_path)
        two = training(memory_cls)
        load_checkpoint(two, tmp_path)
        assert float(two.agent.get_actor().layer.bias.detach()) == two.agent.steps == 1  # type: ignore[attr-defined]
        assert (len(two.memory), two.total_samples) == (9, 10)


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


def test_a_checkpoint_of_the_format_before_is_read(tmp_path: Path) -> None:
    one = training(ListMemory)
    take(one, 0, 10, 1)
    save_checkpoint(one, tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_bytes())
    old = {k: manifest[k] for k in ("number", "training", "memory", "training_steps", "samples")} | {"format": 1}
    (tmp_path / "manifest.json").write_text(json.dumps(old))
    two = training(ListMemory)
    load_checkpoint(two, tmp_path)
    assert (len(two.memory), two.total_samples) == (9, 10)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0xFF
    path.write_bytes(data)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _newer(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"format":2', b'"format":9'))


DAMAGES = {
    "manifest cut": ("manifest.json", _cut),
    "manifest of a newer version": ("manifest.json", _newer),
    "agent flipped": ("training-1.pt", _flip),
    "agent cut": ("training-1.pt", _cut),
    "agent gone": ("training-1.pt", Path.unlink),
    "journal cut to nothing": ("replay-1/journal-1", lambda path: path.write_bytes(b"")),
    "head of the journal flipped": (
        "replay-1/journal-1",
        lambda path: path.write_bytes(path.read_bytes()[:30] + b"?" + path.read_bytes()[31:]),
    ),
    "column cut": ("replay-1/rew-0", _cut),
    "column gone": ("replay-1/obs-0", Path.unlink),
    "origins gone": ("replay-1/origin", Path.unlink),
    "origins flipped": ("replay-1/origin", lambda path: path.write_bytes(b"\x7f" * path.stat().st_size)),
    "samples gone": ("replay-1", shutil.rmtree),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_clear_line(tmp_path: Path, damage: str) -> None:
    one = kept(tmp_path, memory_size=50)
    take(one, 0, 10, 1)
    save_checkpoint(one, tmp_path, {}, "run")
    one.memory.close()
    name, do = DAMAGES[damage]
    do(tmp_path / name)
    two = training(memory_size=50)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(two, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    shutil.rmtree(tmp_path)  # nothing holds it


def test_the_samples_of_another_kind_of_memory_are_refused(tmp_path: Path) -> None:
    one = kept(tmp_path)
    take(one, 0, 10, 1)
    save_checkpoint(one, tmp_path, {}, "run")
    one.memory.close()
    with pytest.raises(CheckpointError, match="not there, or not for a ListMemory"):
        load_checkpoint(training(ListMemory), tmp_path)


LIMITED = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
from test_checkpoint import kept, take
from tmrl_like.checkpoint import save_checkpoint
folder = Path(sys.argv[1])
small, large = kept(folder / "small", memory_size=1000), kept(folder / "large", memory_size=1_000_000)
print(take(small, 0, 10, 1), take(large, 0, 10, 1), len(large.memory))
small.memory.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the system knows no limit of file sizes")
def test_a_memory_that_does_not_fit_on_the_disk_is_in_ram(tmp_path: Path) -> None:
    """The limit stands for a full disk: the system refuses to give the file its blocks."""
    here = Path(__file__).parent
    script = LIMITED.format(path=[str(here), str(here.parent)])
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, env=dict(os.environ), timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False False 9\n" or done.stdout == "True False 9\n"
    assert "cannot be kept on the disk" in done.stderr


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Any:
    """A file system of 4 MB; skipped where none can be made."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    if (
        mount is None
        or subprocess.run([mount, "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode
    ):
        pytest.skip("a file system cannot be mounted here; the limit above stands for it")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)  # columns are still mapped


def test_a_full_file_system_costs_neither_training_nor_stored_samples(tiny_disk: Path, caplog: Any) -> None:
    one = kept(tiny_disk / "run", memory_size=20_000)
    assert take(one, 0, 10, 1)
    save_checkpoint(one, tiny_disk / "run", {}, "run")
    with (tiny_disk / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(4096))
    for sequence in range(2, 3000):  # twice around the ring, and some turns of the journal
        assert take(one, 10 * (sequence - 1), 10, sequence)
    with pytest.raises(CheckpointError, match="No space left"):
        save_checkpoint(one, tiny_disk / "run", {}, "run")
    one.memory.close()
    two = training(memory_size=20_000)
    assert load_checkpoint(two, tiny_disk / "run").receipts == [Receipt("w", 1, 2999)]
    assert len(two.memory) == 19_999
    two.memory.close()
    large = kept(tiny_disk / "large", memory_size=1_000_000)
    assert not take(large, 0, 10, 1)
    assert [r.message for r in caplog.records if "cannot be kept on the disk" in r.message]


def test_a_name_of_a_run_is_never_used_twice() -> None:
    assert new_run() != new_run()


def test_writing_in_another_thread_does_not_need_the_training(tmp_path: Path) -> None:
    one = kept(tmp_path)
    take(one, 0, 100, 1)
    snapshots = []
    for k in range(20):
        one.agent.train(one.memory.sample())
        snapshots.append(take_snapshot(one, {"k": k}, "run"))
    writer = threading.Thread(target=lambda: [snapshot.write(tmp_path) for snapshot in snapshots])
    writer.start()
    for sequence in range(2, 200):
        take(one, 100 * sequence, 10, sequence)
        one.agent.train(one.memory.sample())
    writer.join()
    one.memory.close()
    two = training()
    assert load_checkpoint(two, tmp_path).extra == {"k": 19}
    assert two.agent.steps == 20  # type: ignore[attr-defined]
    two.memory.close()


def test_what_was_dropped_as_stale_after_a_checkpoint_is_joined_with_nothing(tmp_path: Path) -> None:
    def limited(limit: float) -> TrainingOffline:
        return TrainingOffline(
            CountingEnv, partial(ReplayMemory, memory_size=50), CountingAgent, max_sample_age_s=limit
        )

    def admitted(one: TrainingOffline) -> str:
        buffer = one.stale.admit(Buffer([], "w"), 0)
        assert buffer is not None
        return buffer.stream

    for limit, is_joined in ((5.0, False), (float("inf"), True)):
        one = limited(limit)
        one.memory.keep_in(tmp_path, "run")
        take(one, 0, 10, 1)
        save_checkpoint(one, tmp_path, {}, "run")
        one.memory.close()
        two = limited(limit)
        load_checkpoint(two, tmp_path)
        assert (admitted(two) == "w") is is_joined
        two.memory.close()


def test_priorities_come_back_and_what_came_since_is_new(tmp_path: Path) -> None:
    options = {"memory_size": 12, "prioritised": Prioritised()}
    one = kept(tmp_path, **options)
    take(one, 0, 10, 1)
    rows = np.arange(1, 10)
    one.memory._priorities.update(rows, np.arange(1.0, 10.0))  # type: ignore[attr-defined]
    save_checkpoint(one, tmp_path, {}, "run")
    before = one.memory._priorities.powers.copy()  # type: ignore[attr-defined]
    take(one, 10, 5, 2)
    one.memory.close()
    two = training(**options)
    load_checkpoint(two, tmp_path)
    after = two.memory._priorities  # type: ignore[attr-defined]
    assert after.largest == pytest.approx(9.0, 1e-3)
    assert np.array_equal(after.powers[4:10], before[4:10])
    assert np.allclose(after.powers[[10, 11, 0, 1, 2]], after.largest**0.6)
    two.memory.close()


def saved(folder: Path, memory_cls: Any = ReplayMemory, times: int = 2) -> None:
    """A folder with checkpoints 1 to `times`, of 10 samples and 1 training step more each."""
    one = training(memory_cls)
    if memory_cls is ReplayMemory:
        one.memory.keep_in(folder, "run")
    for number in range(1, times + 1):
        take(one, 10 * (number - 1), 10, number)
        one.agent.train(one.memory.sample())
        one.total_updates = number
        save_checkpoint(one, folder, {}, "run")
    one.memory.close()


@pytest.mark.parametrize("memory_cls", [ReplayMemory, ListMemory])
def test_training_files_without_their_manifest_are_neither_passed_over_nor_replaced(
    tmp_path: Path, memory_cls: Any
) -> None:
    saved(tmp_path, memory_cls)
    (tmp_path / "manifest.json").unlink()
    before = sorted(tmp_path.iterdir())
    two = training(memory_cls)
    for call in (
        lambda: has_checkpoint(tmp_path),
        lambda: load_checkpoint(two, tmp_path),
        lambda: save_checkpoint(training(ListMemory), tmp_path),
    ):
        with pytest.raises(CheckpointError, match=r"manifest\.json is missing, but training-2\.pt is there") as caught:
            call()
        assert "\n" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_kill_in_the_very_first_checkpoint_is_no_missing_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = training(ListMemory)
    take(one, 0, 10, 1)
    replace = os.replace

    def killed(source: Any, target: Any) -> None:
        if str(target).endswith("manifest.json") and (tmp_path / "training-1.pt").exists():
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(one, tmp_path)
    assert (tmp_path / "training-1.pt").exists()
    assert not has_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load_checkpoint(training(ListMemory), tmp_path)
    one.total_updates = 7
    save_checkpoint(one, tmp_path)
    two = training(ListMemory)
    load_checkpoint(two, tmp_path)
    assert two.total_updates == 7


@pytest.mark.parametrize("damage", [_cut, _flip, Path.unlink], ids=["cut", "flipped", "gone"])
@pytest.mark.parametrize(
    ("memory_cls", "name"),
    [(ReplayMemory, "training-3.pt"), (ListMemory, "training-3.pt"), (ListMemory, "memory-3.bin")],
)
def test_where_the_newest_checkpoint_is_damaged_the_one_before_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, memory_cls: Any, name: str, damage: Any
) -> None:
    saved(tmp_path, memory_cls, times=3)
    damage(tmp_path / name)
    two = training(memory_cls)
    load_checkpoint(two, tmp_path)
    assert (two.agent.steps, two.total_updates) == (2, 2)  # type: ignore[attr-defined]
    samples = 30 if memory_cls is ReplayMemory else 20  # a memory in files has them all
    assert (two.total_samples, len(two.memory)) == (samples, samples - 1)
    (said,) = [r.getMessage() for r in caplog.records]
    assert "checkpoint 3" in said
    assert "going on from checkpoint 2" in said
    assert "\n" not in said
    two.memory.close()


def test_where_both_checkpoints_are_damaged_nothing_is_taken(tmp_path: Path) -> None:
    saved(tmp_path)
    _flip(tmp_path / "training-1.pt")
    _cut(tmp_path / "training-2.pt")
    with pytest.raises(CheckpointError, match=r"training-2\.pt"):
        load_checkpoint(training(), tmp_path)


def test_the_checkpoint_of_another_run_is_no_older_generation(tmp_path: Path) -> None:
    one = training(ListMemory)
    save_checkpoint(one, tmp_path, {}, "first")
    save_checkpoint(one, tmp_path, {}, "second")
    _cut(tmp_path / "training-2.pt")
    with pytest.raises(CheckpointError):
        load_checkpoint(training(ListMemory), tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows syncs no folders")
def test_a_checkpoint_is_on_the_disk_before_the_manifest_names_it_and_the_manifest_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = training(ListMemory)
    save_checkpoint(one, tmp_path)
    events, fsync, replace = [], os.fsync, os.replace

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        events.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")

    def put(source: Any, target: Any) -> None:
        replace(source, target)
        events.append(Path(target).name)

    monkeypatch.setattr("os.fsync", synced)
    monkeypatch.setattr("os.replace", put)
    save_checkpoint(one, tmp_path)
    expected = ["file", "training-2.pt", "file", "memory-2.bin", "folder", "file", "manifest.json", "folder"]
    assert events == expected
