"""The entries of a control loop, read by number."""

from contextlib import closing

from tmrl_like.delivery.source import Source


def test_entries_are_read_by_number_as_often_as_needed_until_they_are_stored(spool):
    box = spool()
    box.fill(*range(10))

    def read(after, at_most=100):
        found = source.packet_after(after, 1, at_most, 1 << 20)
        return found and (found.first, found.last)

    with closing(Source(box.path, "w", 1)) as source:
        assert [read(0), read(3, 2), read(0, 4), read(10)] == [(1, 10), (4, 5), (1, 4), None]
        source.forget(6)
        assert read(0) == (7, 10)
        box.fill(10)
        assert (read(10), source.newest, source.stored) == ((11, 11), 11, 6)
    with closing(Source(box.path, "w", 1)) as successor:
        assert (successor.newest, successor.stored) == (11, 6)
