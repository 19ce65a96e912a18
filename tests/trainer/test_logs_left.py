"""A trainer that succeeds several: the samples in the stores of former ranks are in its memory, in
streams.
"""

import pytest
from kit.packets import head_of, numbered, packet_of
from kit.trainings import Run

from tmrl_like.base.files import lock_folder
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.testing.fakes import ListMemory
from tmrl_like.types import Receipt


class Memory(ListMemory):
    """A memory that keeps the observation and the stream of each sample."""

    handles_streams = True

    def append_buffer(self, buffer):
        self.data += [(int(sample.obs), buffer.stream) for sample in buffer]


@pytest.fixture
def rows_of(tmp_path):
    yield lambda: Run(tmp_path, memory_cls=Memory).memory.data
    Run.close_all()


def write(folder, *entries, progress=0):
    """Write a file of packets with one sample each, whose observation is its entry. `progress`: the
    entry up to which the process is stored.
    """
    store = SampleStore(folder, lock_folder(folder))
    messages = [packet_of(entry, numbered(entry)) for entry in entries]
    head = head_of(*messages)
    if progress:
        head.progress = (Receipt("w", 7, progress),)
    store.write(head, messages, 0.0)
    assert store.is_settled(0.0)
    store.close()


def test_a_worker_that_went_from_rank_to_rank_and_came_back_is_in_the_memory_as_a_whole(
    tmp_path, rows_of
):
    write(tmp_path / "log", 1)
    write(tmp_path / "rank-1/log", 2, 4)
    write(tmp_path / "rank-2/log", 3)
    assert sorted(number for number, _ in rows_of()) == [1, 2, 3, 4]


def test_a_packet_that_was_written_again_is_in_the_memory_once(tmp_path, rows_of):
    write(tmp_path / "log", 1, 2)
    write(tmp_path / "log", 1, 2, 3)
    assert [number for number, _ in rows_of()] == [1, 2, 3]


def test_a_packet_that_came_too_late_ends_a_stream_where_the_next_file_begins_right_behind_it(
    tmp_path, rows_of
):
    write(tmp_path / "log", 1, progress=2)
    write(tmp_path / "log", 3)
    assert len({stream for _, stream in rows_of()}) == 2
