"""A trainer that comes after several: what the logs of ranks that are no more hold is in its memory, in streams."""

from types import SimpleNamespace

import pytest
from kit.packets import numbered, record_of

from tmrl_like.delivery.log import Head, PacketLog, lock_folder
from tmrl_like.trainer.checkpoints import Checkpoints
from tmrl_like.types import Receipt


class Memory:
    memory_size = 1000

    def __init__(self):
        self.buffers = []

    def __len__(self):
        return len(self.buffers)

    def append(self, buffer):
        self.buffers.append(buffer)


def write(folder, *sequences, receipts=()):
    """A log of packets of one sample, whose observation is the packet's number."""
    packet_log = PacketLog(folder, lock_folder(folder))
    packet_log.make_head = lambda: Head("run", 0, receipts)
    for sequence in sequences:
        packet_log.append(record_of(sequence, numbered(sequence)), 0.0, 1)
    packet_log.close()


@pytest.fixture
def rows_of(tmp_path):
    def rows():
        memory = Memory()
        pacer = SimpleNamespace(recorded_samples=0, before_samples=lambda *_: None)
        training = SimpleNamespace(memory=memory, pacer=pacer, total_samples=0, total_updates=0, epoch=0)
        checkpoints = Checkpoints(tmp_path, in_one_thread=True)
        checkpoints.build(lambda: training, "all")
        checkpoints.close()
        return [(int(sample.obs), buffer.stream) for buffer in memory.buffers for sample in buffer]

    return rows


def test_a_worker_that_went_from_rank_to_rank_and_came_back_is_in_the_memory_as_a_whole(tmp_path, rows_of):
    write(tmp_path / "log", 1)
    write(tmp_path / "rank-1/log", 2, 4)
    write(tmp_path / "rank-2/log", 3)
    assert sorted(number for number, _ in rows_of()) == [1, 2, 3, 4]


def test_a_packet_that_was_written_again_is_in_the_memory_once(tmp_path, rows_of):
    write(tmp_path / "log", 1, 2)
    write(tmp_path / "log", 1, 2, 3)
    assert [number for number, _ in rows_of()] == [1, 2, 3]


def test_a_packet_that_came_too_late_ends_a_stream_where_the_next_segment_begins_right_behind_it(tmp_path, rows_of):
    write(tmp_path / "log", 1)
    write(tmp_path / "log", 3, receipts=(Receipt("w", 7, 2),))
    assert len({stream for _, stream in rows_of()}) == 2
