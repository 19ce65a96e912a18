"""A worker's entries after a power cut, which mixes pages of different moments."""

import random
import shutil

import pytest
from both_ends import Taker

from tmrl_like.delivery import sample_log
from tmrl_like.delivery.segments import (
    END,
    FREED,
    HEAD_BYTES,
    NEXT,
    NUMBER,
    SUFFIX,
    Segment,
    incarnations_in,
)

PAGE = 4096


def segments_of(box):
    """Return the segments in use, in order."""
    segments = [Segment(path) for path in box.folder.path.glob(f"{1:016x}-*{SUFFIX}")]
    return sorted((s for s in segments if s.words[NUMBER]), key=lambda s: s.words[NUMBER])


def filled(box, files):
    """Append one sample in each of `files` files."""
    for number in range(files):
        if number:
            box.begin_file()
        box.fill(number)


def found(box, taker=None):
    """Send and store all that can be sent, check that its files are removed, and return the
    taker.
    """
    taker = taker or Taker()
    for _ in range(10):
        box.deliver(taker)
    assert incarnations_in(box.folder.path) == [box.log.incarnation]
    assert taker.missing == set()
    return taker


def test_a_file_that_was_filled_again_does_not_follow_what_it_once_followed(spool):
    box = spool()
    filled(box, 3)
    box.kill()
    _, second, third = segments_of(box)
    # the same number twice, as after a segment was freed and filled again
    shutil.copyfile(third.path, second.path)
    third.path.unlink()
    taker = found(spool(2))
    assert taker.rows == {1: [0, 2]}
    assert taker.gaps == [(1, 1, 3)]


@pytest.mark.parametrize(
    ("words", "rows", "gaps"),
    [
        ({END: HEAD_BYTES}, [0, 1, 3, 4], [(1, 2, 4)]),  # entries that it does not know of are lost
        ({NEXT: 0}, [0, 1, 2, 3, 4], []),
        ({FREED: 0}, [0, 1, 2, 3, 4], []),
        (None, [0, 1, 3, 4], [(1, 2, 4)]),  # the page with the sample was not written
    ],
)
def test_a_head_of_an_earlier_moment_costs_what_it_does_not_know_and_no_more(
    spool, words, rows, gaps
):
    box = spool()
    filled(box, 5)
    box.kill()
    third = segments_of(box)[2]
    if words is None:
        third.map[HEAD_BYTES:PAGE] = bytes(PAGE - HEAD_BYTES)
    for word, value in (words or {}).items():
        third.words[word] = value
    taker = found(spool(2))
    assert taker.rows == {1: rows}
    assert taker.gaps == gaps


@pytest.mark.fault(
    "disk",
    "a power cut at a worker, at any moment",
    "nothing is doubled or out of order, what is lost is a gap",
)
@pytest.mark.parametrize("seed", range(12))
def test_pages_of_different_moments_double_nothing_and_leave_gaps_that_are_known(
    spool, tmp_path, monkeypatch, seed
):
    monkeypatch.setattr(sample_log, "_SEGMENT_BYTES", 2 * PAGE)
    monkeypatch.setattr(sample_log, "_ROWS", 16)
    rng, box, taker = random.Random(seed), spool(), Taker()
    written = {}  # pages on the disk, by file and offset
    number = 0
    for _ in range(60):
        for _ in range(rng.randrange(20)):
            box.fill(number, size=40)
            number += 1
        box.pump(taker.send, rng.random() < 0.2, awaits=True)
        taker.acknowledge(box, stored=rng.random() < 0.5)
        for path in box.folder.path.glob(f"{1:016x}-*{SUFFIX}"):
            data = path.read_bytes()
            for at in range(0, len(data), PAGE):
                if rng.random() < (0.05, 0.5)[seed % 2]:
                    written[path, at] = data[at : at + PAGE]
    box.kill()
    for path in box.folder.path.glob(f"{1:016x}-*{SUFFIX}"):
        size = path.stat().st_size
        path.write_bytes(
            b"".join(written.get((path, at), bytes(PAGE)) for at in range(0, size, PAGE))
        )
    found(spool(2), taker)
    assert taker.rows[1] == sorted(set(taker.rows[1])), "twice, or not in order"
    for packet, numbers in zip(taker.packets, taker.numbers, strict=True):
        assert numbers == list(range(packet.first - 1, packet.last)), (
            "another sample under this number"
        )
