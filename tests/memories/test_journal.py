from __future__ import annotations

import pytest

from tmrl_like.errors import DecodingError
from tmrl_like.memories import journal as module
from tmrl_like.memories.journal import Journal


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(module, "_SIZE", 512)


def read(folder):
    opened = Journal.open(folder)
    if opened is None:
        return None
    opened[0].close()
    return opened[1]


def filled(folder, records=3):
    journal = Journal.create(folder, b"head")
    for k in range(records):
        assert journal.append(b"record %d" % k)
    return journal


def test_what_was_appended_is_read_in_order(tmp_path):
    filled(tmp_path).close()
    assert read(tmp_path) == [b"head", b"record 0", b"record 1", b"record 2"]


def test_a_full_file_says_so_and_a_new_head_replaces_what_was_before(tmp_path):
    journal = filled(tmp_path, 0)
    written = 0
    for turn in range(5):
        while journal.append(b"record"):
            written += 1
        journal.rotate(b"head %d" % turn)
        assert read(tmp_path) == [b"head %d" % turn]
    assert written > 50
    journal.close()


def test_a_journal_goes_on_after_it_was_read(tmp_path):
    filled(tmp_path).close()
    journal, records = Journal.open(tmp_path)
    journal.rotate(b"again")
    assert journal.append(b"more")
    journal.close()
    assert (len(records), read(tmp_path)) == (4, [b"again", b"more"])


def test_a_head_larger_than_the_file_makes_it_grow(tmp_path):
    journal = filled(tmp_path)
    journal.rotate(b"x" * 4000)
    assert journal.append(b"y" * 100)
    journal.close()
    assert read(tmp_path) == [b"x" * 4000, b"y" * 100]


class Recorder:
    """Stands in for a journal's file: after each byte, `seen` is told."""

    def __init__(self, file, seen):
        self._file, self._seen = file, seen

    def write(self, data):
        self._file.write(data[:1])
        self._seen()
        return 1

    def __getattr__(self, name):
        return getattr(self._file, name)


def test_a_kill_at_any_byte_leaves_all_that_was_written_before(tmp_path):
    journal = filled(tmp_path)
    expected = [[b"head", b"record 0", b"record 1", b"record 2"]]
    found = []

    def seen():
        found.append(read(tmp_path))
        assert found[-1] in expected

    journal._files = [Recorder(file, seen) for file in journal._files]
    for turn in range(3):
        expected.append([*expected[-1], b"one more"])
        journal.append(b"one more")
        assert found[-1] == expected.pop() != expected.pop()
        expected = [found[-1], [b"head %d" % turn]]
        journal.rotate(b"head %d" % turn)
        expected = [found[-1]]
        assert expected == [[b"head %d" % turn]]
    journal.close()
    assert len(found) > 200


def test_any_flipped_byte_is_an_error_or_costs_the_last_record_at_most(tmp_path):
    journal = filled(tmp_path, 2)
    journal.rotate(b"new head")
    for k in range(3):
        journal.append(b"record %d" % k)
    journal.close()
    whole = read(tmp_path)
    damaged = 0
    for name in ("journal-0", "journal-1"):
        before = (tmp_path / name).read_bytes()
        for k in range(len(before)):
            (tmp_path / name).write_bytes(before[:k] + bytes([before[k] ^ 0x55]) + before[k + 1 :])
            try:
                assert read(tmp_path) in (whole, whole[:-1])
            except DecodingError:
                damaged += 1
        (tmp_path / name).write_bytes(before)
    assert damaged > 50


def test_a_journal_that_was_never_completed_is_none(tmp_path):
    assert read(tmp_path) is None
    filled(tmp_path).close()
    (tmp_path / "journal-1").rename(tmp_path / "journal-1.draft")
    assert read(tmp_path) is None
    (tmp_path / "journal-1").write_bytes(bytes(512))
    with pytest.raises(DecodingError, match="no head"):
        read(tmp_path)
