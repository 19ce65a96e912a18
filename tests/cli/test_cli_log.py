"""`tmrl-like log` on a trainer's store, and its export as a Minari data set."""

import pytest
from kit.episodes import episode
from kit.packets import numbered, packet_of

from tmrl_like.replay.data_sets import read_data_set, write_log
from tmrl_like.wire import messages as m


def packet(first, *returns, worker="arm"):
    """Return a packet of two samples and reports of episodes, and its number of samples."""
    reports = [episode(return_=return_) for return_ in returns]
    samples = numbered(1), numbered(2)
    return packet_of(first, *samples, worker=worker, incarnation=0xAB, reports=reports), 2


@pytest.fixture
def rows(typed):
    """Return a function that returns the rows shown of a log, in words."""

    def show(path):
        return [line.split() for line in typed("log", path).out.splitlines() if ", ab " in line]

    return show


def observations(folder):
    return [[float(sample.obs) for sample in buffer.memory] for buffer in read_data_set(folder)]


def test_a_log_and_one_file_of_it_are_shown_by_process(tmp_path, rows):
    others = packet(1, worker="leg"), packet(3, worker="leg")
    write_log(tmp_path / "log", [[packet(1), *others]])
    for path in (tmp_path / "log", *tmp_path.glob("log/*.log")):
        # packets, missing, samples
        assert [(row[0], *row[4:7]) for row in rows(path)] == [
            ("arm,", "1", "0", "2"),
            ("leg,", "2", "0", "4"),
        ]


def test_gaps_and_returns_are_in_the_table(tmp_path, rows):
    known = packet(1, 1.0)  # after a kill, a packet may be in two files
    write_log(tmp_path, [[known], [known, packet(7, 3.0, 5.0)], [packet(11)]])
    ((worker, process, *_, packets, missing, samples, _, episodes, mean, _, spread),) = rows(
        tmp_path
    )
    assert (worker, process) == ("arm,", "ab")
    assert (packets, missing, samples) == ("3", "3", "6")
    assert (episodes, mean, spread) == ("3", "3", "2")


def test_the_samples_of_all_ranks_are_shown_and_read(tmp_path, rows):
    write_log(tmp_path / "log", [[packet(1), packet(3)]])
    write_log(tmp_path / "rank-1" / "log", [[packet(5)]])
    assert [row[6] for row in rows(tmp_path)] == ["4", "2"]
    assert sum(map(len, observations(tmp_path))) == 6


@pytest.mark.filterwarnings("ignore")
def test_the_whole_episodes_are_written_as_a_minari_data_set_which_replaces_nothing(
    tmp_path, typed, refused
):
    data, target = tmp_path / "data", tmp_path / "tiny-v3"
    typed("record TINY --random --episodes 2 --out", data)
    samples = sum(map(len, read_data_set(data)))
    out = typed("log", data, "--minari", target).out
    assert f"{target}: {samples - 2} steps of 2 whole episodes" in out
    assert sum(map(len, read_data_set(target))) == samples
    assert "is a data set of Minari, which has no packets" in refused("log", target)
    (tmp_path / "file").touch()
    for taken, said in (
        (target, "tiny-v3 exists: choose another folder"),
        (tmp_path / "file", "file exists: choose another folder"),
        (tmp_path / "file" / "mine", "file/mine: "),
    ):
        assert said in refused("log", data, "--minari", taken)
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("name", ["log", "gone", "data.pkl"])
def test_where_no_log_can_be_read_is_one_line(tmp_path, refused, name):
    (tmp_path / "log").write_bytes(b"text")
    (tmp_path / "data.pkl").write_bytes(b"\x80")
    assert str(tmp_path / name) in refused("log", tmp_path / name)


def test_a_log_of_another_version_is_one_line(tmp_path, refused, monkeypatch):
    write_log(tmp_path, [[packet(1)]])
    monkeypatch.setattr(m, "WIRE_VERSION", m.WIRE_VERSION + 1)
    assert f"wire version {m.WIRE_VERSION - 1}" in refused("log", tmp_path, code=1)
