"""Samples in files: what a kill at any moment leaves is what was committed, no more and no less."""

from __future__ import annotations

import errno
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_like.errors import CheckpointError
from tmrl_like.memories import ReplayMemory, journal
from tmrl_like.memories.kept import MemoryInFiles
from tmrl_like.memories.state import decode, encode
from tmrl_like.testing.memories import ActionBufferEnv, MemoryContract, cut, interleaved, packed
from tmrl_like.types import Buffer, Info, Receipt, Sample


def samples(first, n, first_reset=3):
    """Samples that say which they are: obs (number, number squared), rew number, act -number."""
    rows = [
        Sample(
            np.float32([-k]), (np.float64(k), np.full(2, k * k, np.float32)), float(k), False, False,
            Info(is_reset=k % 7 == first_reset),
        )
        for k in range(first, first + n)
    ]  # fmt: skip
    return Buffer(rows, "w")


def rows_of(memory):
    """The sample numbers that are in the ring, oldest first; each row is checked to be whole."""
    lanes = memory._lanes
    numbers = np.arange(lanes.oldest, lanes.written) % lanes.capacity
    act, obs, rew = memory._fields[:3]
    found = obs.columns[0].array[numbers]
    assert np.array_equal(obs.columns[1].array[numbers, 1], (found * found).astype(np.float32))
    assert np.array_equal(act.columns[0].array[numbers, 0], -found.astype(np.float32))
    assert np.array_equal(rew.columns[0].array[numbers], found)
    return found.astype(int).tolist()


def recovered(folder, **options):
    memory = ReplayMemory(**{"memory_size": 20, "batch_size": 8, **options})
    try:
        if not memory.recover(folder):
            return None, [], []
        return memory, rows_of(memory), memory.receipts
    finally:
        memory.close()


def kept_in(folder, **options):
    memory = ReplayMemory(**{"memory_size": 20, "batch_size": 8, **options})
    memory.keep_in(folder, "run")
    return memory


def test_what_was_committed_is_found_again_without_a_close(tmp_path):
    memory = kept_in(tmp_path)
    memory.append(samples(0, 5))
    memory.append(samples(5, 4))
    assert memory.commit([Receipt("w", 7, 1), Receipt("w", 7, 2)])
    memory._files._lock.release()
    _, rows, receipts = recovered(tmp_path)
    assert rows == list(range(9))
    assert receipts == [Receipt("w", 7, 2)]
    memory.close()


def test_what_was_not_committed_is_dropped(tmp_path):
    memory = kept_in(tmp_path)
    memory.append(samples(0, 5))
    memory.commit([Receipt("w", 7, 1)])
    memory.append(samples(5, 4))
    memory.close()
    _, rows, receipts = recovered(tmp_path)
    assert (rows, receipts) == ([0, 1, 2, 3, 4], [Receipt("w", 7, 1)])


class World:
    """A memory in files, of which a copy is taken at each step of each append, as a kill would leave it."""

    def __init__(self, folder, memory_size, monkeypatch):
        self.home, self.copy = folder / "home", folder / "copy"
        self.memory = kept_in(self.home, memory_size=memory_size)
        self.size = memory_size
        self.copies = 0
        self.is_looking = False
        self.committed = 0  # samples
        self.begun = 0
        self.sequence = 0
        monkeypatch.setattr(ReplayMemory, "_write", self._write_and_look(ReplayMemory._write))
        monkeypatch.setattr(journal, "_write_all", self._write_halves)

    def _write_and_look(self, write):
        def wrapped(memory, *arguments):
            self.look()
            write(memory, *arguments)
            self.look()

        return wrapped

    def _write_halves(self, file, data):
        half = len(data) // 2
        file.write(data[:half])
        self.look()
        file.write(data[half:])
        self.look()

    def look(self):
        """What a process would find that starts now."""
        if self.is_looking:
            return
        self.is_looking = True
        self.copies += 1
        shutil.copytree(self.home, self.copy, ignore=shutil.ignore_patterns("replay.lock"))
        memory, rows, receipts = recovered(self.copy, memory_size=self.size)
        shutil.rmtree(self.copy)
        self.is_looking = False
        if memory is None:
            assert self.committed == 0
            return
        written = memory._lanes.written
        assert written in (self.committed, self.begun)
        assert rows == list(range(memory._lanes.oldest, written))
        assert max(0, written - self.size) <= written - len(rows) <= max(0, self.begun - self.size)
        sequence = self.sequence if written == self.committed else self.sequence + 1
        assert [receipt.sequence for receipt in receipts] == [sequence] * bool(written)

    def append(self, n):
        self.begun = self.committed + n
        self.memory.append(samples(self.committed, n))
        assert self.memory.commit([Receipt("w", 1, self.sequence + 1)])
        self.committed, self.sequence = self.begun, self.sequence + 1
        self.look()


@pytest.mark.parametrize("sizes", [(3, 1, 4), (7,), (1,), (19, 2)])
def test_a_kill_at_any_step_of_an_append_costs_what_was_not_committed_and_nothing_else(tmp_path, monkeypatch, sizes):
    monkeypatch.setattr(journal, "_SIZE", 1024)  # so that files take turns often
    world = World(tmp_path, 20, monkeypatch)
    for turn in range(24):
        world.append(sizes[turn % len(sizes)])
    assert world.copies > 100
    world.memory.close()


def test_the_check_above_sees_rows_that_are_written_before_they_are_announced(tmp_path, monkeypatch):
    monkeypatch.setattr(MemoryInFiles, "_begin", lambda memory, samples: None)
    world = World(tmp_path, 20, monkeypatch)
    with pytest.raises(AssertionError):
        for _ in range(10):
            world.append(5)
    world.memory.close()


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    memory_size=st.integers(1, 60),
    new_size=st.integers(1, 60),
    kills=st.lists(st.integers(0, 30), max_size=3),
    act_buf_len=st.integers(0, 3),
)
def test_a_memory_that_was_recovered_is_the_one_that_was_never_interrupted(
    tmp_path_factory, sizes, memory_size, new_size, kills, act_buf_len
):
    folder = tmp_path_factory.mktemp("replay")

    def make(size):
        return ReplayMemory(memory_size=size, act_buf_len=act_buf_len, batch_size=4)

    def identities(memory):
        return sorted(str(memory.get_transition(k)) for k in range(len(memory)))

    streams = [list(cut(ActionBufferEnv(worker, act_buf_len).take(60), sizes)) for worker in range(2)]
    plain, durable = make(memory_size), make(memory_size)
    durable.keep_in(folder, "run")
    for turn, (worker, steps) in enumerate(interleaved(streams, seed=memory_size)):
        buffer = packed(steps, f"w{worker}", lambda sample: (sample[0], sample[1][:3], *sample[2:]), False)
        if turn in kills:
            durable.append(buffer)  # not committed
            durable.close()
            durable = make(memory_size)
            if not durable.recover(folder):
                durable.keep_in(folder, "run")
            plain = make(memory_size)
            plain.load_state_dict(decode(encode(durable.state_dict())))
        for memory in (plain, durable):
            memory.append(buffer)
        durable.commit([Receipt(f"w{worker}", 1, turn)])
        assert identities(plain) == identities(durable)
    durable.close()
    resized = make(new_size)
    if resized.recover(folder):
        expected = make(new_size)
        expected.load_state_dict(decode(encode(plain.state_dict())))
        assert identities(resized) == identities(expected)
        assert resized.kept.capacity == new_size
    resized.close()


class TestContract(MemoryContract):
    """A memory in files is a memory."""

    @pytest.fixture(autouse=True)
    def folders(self, tmp_path):
        self.folder, self.made = tmp_path, []
        yield
        for memory in self.made:
            memory.close()

    def make_memory(self, **kwargs):
        memory = ReplayMemory(act_buf_len=self.act_buf_len, **kwargs)
        memory.crc_debug = False  # with it samples stay in RAM
        memory.keep_in(self.folder / str(len(self.made)), "run")
        memory.crc_debug = kwargs.get("crc_debug", False)
        self.made.append(memory)
        return memory


def test_rewards_that_become_fractions_get_another_file(tmp_path):
    memory = kept_in(tmp_path)
    whole = [Sample(0, 0, k, False, False, Info(is_reset=k == 0)) for k in range(3)]
    memory.append(Buffer(whole, "w"))
    memory.commit([Receipt("w", 1, 1)])
    memory.append(Buffer([Sample(0, 0, 0.25, False, False, Info())], "w"))
    memory.commit([Receipt("w", 1, 2)])
    memory.close()
    again = ReplayMemory(memory_size=20)
    assert again.recover(tmp_path)
    assert [again.get_transition(k).rew for k in range(3)] == [1, 2, 0.25]
    again.close()


def test_samples_that_only_await_their_first_step_are_not_called_stored(tmp_path):
    memory = kept_in(tmp_path)
    memory.append(samples(0, 1, first_reset=0))
    assert not memory.commit([Receipt("w", 1, 1)])
    memory.append(samples(1, 2))
    assert memory.commit([Receipt("w", 1, 2)])
    memory.close()
    assert recovered(tmp_path)[1] == [0, 1, 2]


def test_two_processes_cannot_have_one_folder(tmp_path):
    memory = kept_in(tmp_path)
    with pytest.raises(CheckpointError, match="in use by another trainer"):
        ReplayMemory().recover(tmp_path)
    memory.close()


def test_samples_stored_with_other_settings_are_refused(tmp_path):
    memory = kept_in(tmp_path)
    memory.append(samples(0, 5))
    memory.commit([])
    memory.close()
    other = ReplayMemory(memory_size=20, reset_act_buf=False, last_act_on_reset=True)
    with pytest.raises(CheckpointError, match="last_act_on_reset"):
        other.recover(tmp_path)
    other.close()


def full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_that_is_too_small_from_the_start_is_one_line_and_the_samples_are_in_ram(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("tmrl_like.memories.durable.reserve", full_disk)
    memory = kept_in(tmp_path)
    memory.append(samples(0, 5))
    assert not memory.commit([Receipt("w", 1, 1)])
    assert (len(caplog.records), len(memory), memory.keeps_files) == (1, 3, False)
    assert "No space left on device" in caplog.text
    assert not list(tmp_path.glob("replay-*"))


@pytest.mark.parametrize("turn", range(12))
def test_a_disk_that_fills_up_at_any_write_costs_no_committed_sample_and_stops_nothing(
    tmp_path, monkeypatch, caplog, turn
):
    memory = kept_in(tmp_path, memory_size=10)
    memory.append(samples(0, 8))
    memory.commit([Receipt("w", 1, 1)])
    real, writes = journal._write_all, []

    def fills_up(file, data):
        writes.append(len(data))
        if len(writes) > turn:
            file.write(data[: len(data) // 2])
            full_disk()
        real(file, data)

    monkeypatch.setattr(journal, "_write_all", fills_up)
    committed = 8
    for k in range(8):
        memory.append(samples(8 + 3 * k, 3))
        if memory.commit([Receipt("w", 1, k + 2)]):
            committed = 8 + 3 * (k + 1)
    monkeypatch.setattr(journal, "_write_all", real)
    assert len(caplog.records) == 1
    assert rows_of(memory) == list(range(22, 32))
    memory.close()
    _, rows, _ = recovered(tmp_path, memory_size=10)
    assert rows == list(range(rows[0], committed))
    assert rows[0] <= committed + 3 - 10
