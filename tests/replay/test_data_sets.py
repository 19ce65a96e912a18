"""Where data sets lie: in a trainer's stores."""

from kit.packets import numbered, packet_of

from tmrl_like.replay.data_sets import read_data_set, write_log


def packet(first):
    """Return a packet of two samples, and their number."""
    return packet_of(first, numbered(1), numbered(2), worker="arm"), 2


def samples_in(path):
    return sum(len(buffer) for buffer in read_data_set(path))


def test_the_samples_of_all_ranks_are_read(tmp_path):
    write_log(tmp_path / "log", [[packet(1), packet(3)]])
    write_log(tmp_path / "rank-1" / "log", [[packet(5)]])
    assert (samples_in(tmp_path), samples_in(tmp_path / "log")) == (6, 4)
