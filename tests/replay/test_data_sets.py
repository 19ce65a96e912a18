"""Where data sets lie: in a trainer's stores, or in what a worker has in its spool."""

import pytest
from kit.episodes import episode
from kit.packets import TIMING, numbered, packet_of

from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.replay.data_sets import read_data_set, write_log


def packet(first):
    """Return a packet of two samples, and their number."""
    return packet_of(first, numbered(1), numbered(2), worker="arm"), 2


def observations(path):
    return [[float(sample.obs) for sample in buffer.memory] for buffer in read_data_set(path)]


def test_the_samples_of_all_ranks_are_read(tmp_path):
    write_log(tmp_path / "log", [[packet(1), packet(3)]])
    write_log(tmp_path / "rank-1" / "log", [[packet(5)]])
    assert sum(map(len, observations(tmp_path))) == 6
    assert sum(map(len, observations(tmp_path / "log"))) == 4


@pytest.mark.parametrize("lives", [False, True], ids=["dead", "living"])
def test_what_a_worker_has_in_its_spool_is_read_and_left_as_it_is(tmp_path, lives):
    folder = open_folder(tmp_path, "arm")
    log = SampleLog(folder, incarnation=0xAB)
    for number in (1, 2):
        log.append(numbered(number), *TIMING)
    log.end_episode(episode(return_=6.0))
    log.add_break()
    log.append(numbered(3), *TIMING)
    if not lives:
        log.close()
        folder.close()
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    assert observations(folder.path) == [[1, 2], [3]]
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    log.close()
    folder.close()
