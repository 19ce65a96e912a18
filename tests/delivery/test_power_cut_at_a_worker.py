"""A worker's entries after a power cut, which mixes pages of different moments; the histories of
tests/simulation draw any such mixture.
"""

import shutil

import pytest
from both_ends import Taker
from kit.packets import answers_of

from tmrl_like.delivery.segments import (
    END,
    HEAD_BYTES,
    NEXT,
    NUMBER,
    SUFFIX,
    Segment,
    incarnations_in,
)


def segments_of(box):
    """Return the segments in use, in order."""
    segments = [Segment(path) for path in box.path.glob(f"{1:016x}-*{SUFFIX}")]
    return sorted((s for s in segments if s.words[NUMBER]), key=lambda s: s.words[NUMBER])


def filled(box, files):
    """Append one sample in each of `files` files."""
    for number in range(files):
        box.fill(number, size=10_000)  # two of them are too large for a file
        box.log.refill()


def found(box):
    """Send and store all that can be sent, check that its files are removed, and return the
    taker.
    """
    taker = Taker()
    for _ in range(10):
        box.deliver(taker)
    assert incarnations_in(box.path) == [box.log.incarnation]
    assert not any(ack.again for ack in answers_of(taker.receiver))
    return taker


def test_a_file_that_was_filled_again_does_not_follow_what_it_once_followed(spool):
    box = spool(log_bytes=1 << 19)
    filled(box, 3)
    box.kill()
    _, second, third = segments_of(box)
    # the same number twice, as after a segment was freed and filled again
    shutil.copyfile(third.path, second.path)
    third.path.unlink()
    taker = found(spool(2))
    assert taker.rows == {1: [0, 2]}
    assert taker.stretches == [1, 3]


@pytest.mark.parametrize(
    ("word", "value", "rows", "stretches"),
    [
        (END, HEAD_BYTES, [0, 1, 3, 4], [1, 4]),  # entries that it does not know of are lost
        (NEXT, 0, [0, 1, 2, 3, 4], [1]),
    ],
)
def test_a_head_of_an_earlier_moment_costs_what_it_does_not_know_and_no_more(
    spool, word, value, rows, stretches
):
    box = spool(log_bytes=1 << 19)
    filled(box, 5)
    box.kill()
    segments_of(box)[2].words[word] = value
    taker = found(spool(2))
    assert taker.rows == {1: rows}
    assert taker.stretches == stretches
