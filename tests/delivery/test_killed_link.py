"""The link process is killed at any line: entries arrive once and in order, and their files are
removed.
"""

import gc

import pytest
from both_ends import Ends, Taker
from kill_lines import kill_after

import tmrl_like.delivery
from tmrl_like.delivery import sample_log
from tmrl_like.delivery.segments import incarnations_in


def deliver(ends, taker):
    ends.hasten()
    ends.pump(taker.send, True)
    taker.acknowledge(ends)


def live(folder, lines, dies_alone):
    """Kill the link after this many lines of its work on entries in several files; return whether
    it was killed.
    """
    ends, taker = Ends(folder, max_samples=2), Taker()
    for number in range(6):
        ends.fill(number, size=200)
        if number % 2:
            ends.begin_file()
        if number == 2:
            ends.add_break()
            ends.end_episode()
    is_killed = kill_after(lines, lambda: deliver(ends, taker), tmrl_like.delivery)
    ends.fill(6)
    gc.collect()  # release a lock that it may have taken
    if dies_alone:
        ends.restart_reader()
    else:
        ends.kill()
        ends = Ends(folder, incarnation=2)
    deliver(ends, taker)
    assert taker.rows == {1: [0, 1, 2, 3, 4, 5, 6]}, f"killed at line {lines}"
    assert (taker.gaps, taker.missing) == ([], set())
    assert dies_alone or incarnations_in(ends.folder.path) == [2]
    ends.restart_reader()
    assert (ends.unacknowledged_samples(), ends.lost_samples) == (0, 0)
    ends.close()
    return is_killed


# killed processes close no files
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_entries_arrive_once_and_in_order_after_a_kill_at_any_line(tmp_path, monkeypatch):
    """The link is killed alone or with its robot, alternately."""
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 4096)
    monkeypatch.setattr(sample_log, "_ROWS", 4)
    lines = 0
    while live(tmp_path / str(lines), lines, dies_alone=lines % 2 == 0):
        lines += 17
    assert lines > 300
