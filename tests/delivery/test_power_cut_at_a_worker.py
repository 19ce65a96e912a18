"""What a power cut has left of a worker's samples: pages of different moments, and no packets."""

import errno
import random
import shutil
from types import SimpleNamespace

import pytest
from both_ends import Wire, opened_ends, sample
from disk import PowerDisk

from tmrl_like.base.files import disk
from tmrl_like.delivery.log import segments_in as logs_in
from tmrl_like.delivery.reader import incarnations_in
from tmrl_like.delivery.segments import (
    END,
    FREED,
    HEAD_BYTES,
    NUMBER,
    RESUME,
    ROW,
    SEALED,
    Segment,
    segments_in,
)
from tmrl_like.wire.packet import decode_body


@pytest.fixture
def ends(tmp_path):
    with opened_ends() as make:
        yield lambda incarnation=1, max_samples=2: make(tmp_path, incarnation, max_samples=max_samples)


def cut(box, before):
    """Cut the power: there are no packets, and `before` changes the samples, a segment after the other."""
    box.kill()
    box.outbox._is_closed = True  # it does nothing more
    for path in logs_in(box.folder.path):
        path.unlink()
    segments = [Segment(path) for path in sorted(segments_in(box.folder.path))]
    before(segments)
    for segment in segments:
        segment.close()


def rows_in(segment):
    runs = segment.runs(HEAD_BYTES, segment.words[END])
    return [at + i * size for kind, at, size, count in runs if kind == ROW for i in range(count)]


def packets_of(box):
    """(sequence, breaks, samples) of each packet that leaves."""
    wire = Wire()
    box.seal()
    box.pump(wire.send, True)
    rows = ([int(row.obs[0]) for row in decode_body(header, body).samples()] for header, body in wire.packets)
    return [(header.sequence, header.breaks, row) for (header, _), row in zip(wire.packets, rows, strict=True)]


def test_what_may_not_follow_the_packet_before_it_begins_with_a_break(ends):
    box = ends()
    box.append(sample(0))
    assert packets_of(box) == [(1, 0, [0])]
    for i in range(1, 5):
        box.append(sample(i))

    def lose_a_mark(segments):
        segments[0].words[rows_in(segments[0])[0] >> 3] = 0

    cut(box, lose_a_mark)
    assert packets_of(ends(2)) == [(1, 0, [0, 1]), (2, 1, [2, 3]), (3, 1, [4])], "who has packet 1 misses sample 1"


def test_a_mark_that_does_not_follow_ends_what_is_certain(ends):
    box = ends()
    for i in range(6):
        box.append(sample(i))
    box.pump(lambda data: True, True)
    box.append(sample(6))

    def damage_a_mark(segments):
        segments[0].words[rows_in(segments[0])[3] >> 3] = 7

    cut(box, damage_a_mark)
    assert packets_of(ends(2)) == [(1, 0, [0, 1])]


def test_a_file_that_was_filled_again_does_not_follow_what_it_once_followed(ends):
    box = ends()
    for i in range(3):
        box.append(sample(i))
        box.begin_file()

    def fill_again(segments):
        _, second, third = sorted((s for s in segments if s.words[NUMBER]), key=lambda s: s.words[NUMBER])[:3]
        shutil.copyfile(third.path, second.path)

    cut(box, fill_again)
    assert packets_of(ends(2)) == [(1, 0, [0])]


def test_what_was_asked_to_leave_early_moves_no_sample_to_a_later_packet(ends):
    box = ends(max_samples=4)
    for i in range(5):
        box.append(sample(i))
        if i == 2:
            assert packets_of(box) == [(1, 0, [0, 1, 2])]
    box.begin_file()
    for i in range(5, 8):
        box.append(sample(i))
    box.pump(lambda data: True, True)  # packet 2: samples 3 to 6

    def lose_the_marks(segments):
        for segment in segments:
            segment.words[FREED] = 0
            for at in rows_in(segment):
                segment.words[at >> 3] = 0

    cut(box, lose_the_marks)
    assert packets_of(ends(2, max_samples=4)) == [(1, 0, [0, 1, 2, 3]), (2, 1, [4, 5, 6, 7])]


def test_what_begins_in_a_file_that_is_gone_is_not_certain(ends):
    box = ends(max_samples=2)
    box.append(sample(0))
    box.begin_file()
    box.append(sample(1))
    box.append(sample(2))
    box.pump(lambda data: True, True)  # packet 1: samples 0 and 1

    def let_the_second_be_as_it_was_before_the_first_was_freed(segments):
        segments[1].words[RESUME] = segments[1].words[SEALED] = 0

    cut(box, let_the_second_be_as_it_was_before_the_first_was_freed)
    assert packets_of(ends(2)) == []


def test_where_samples_may_be_read_from_is_right_at_every_moment(ends):
    box, moments = ends(), []
    box.append(sample(0))
    assert packets_of(box) == [(1, 0, [0])]

    class Words(list):
        def __setitem__(self, word, value):
            super().__setitem__(word, value)
            moments.append((self[RESUME], self[SEALED]))

    words = Words([0] * 16)
    list.__setitem__(words, RESUME, HEAD_BYTES)
    box.outbox._reader._note_sealed(SimpleNamespace(words=words, release=list, acquire=list), 200)
    assert moments[-1] == (200, 1)
    assert all(resume == 0 for resume, _ in moments[:-1]), "RESUME belongs to another packet"


def test_a_file_that_is_filled_again_says_nothing_of_the_packets_it_held(ends):
    (segment, *_) = map(Segment, segments_in(ends().folder.path))
    segment.words[RESUME] = segment.words[SEALED] = 200
    segment.begin(1, 5, 0, 0, 0, True)
    assert (segment.words[RESUME], segment.words[SEALED]) == (0, 0)
    segment.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_a_dead_process_left_is_on_the_disk_as_packets_before_its_files_go(ends, tmp_path, seed):
    with PowerDisk(tmp_path) as power:
        box = ends()
        box.append(sample(0))
        box.kill()
        ends(2).kill()
        power.cut(random.Random(seed))
        assert packets_of(ends(3)) == [(1, 0, [0])]


def test_where_packets_cannot_be_synced_the_files_of_a_dead_process_stay(ends, monkeypatch):
    box = ends()
    box.append(sample(0))
    box.kill()

    def fail(file):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(disk, "sync", fail)
    box = ends(2)
    assert incarnations_in(box.folder.path) == {1, 2}
