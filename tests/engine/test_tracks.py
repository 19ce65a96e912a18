"""Bookkeeping of what a gateway acknowledges to workers and asks them for again, without a node."""

import pytest
from kit.packets import INCARNATION, header

from tmrl_like.engine.tracks import Tracks
from tmrl_like.wire import messages as m


@pytest.fixture
def tracks():
    return Tracks()


def words(tracks):
    return [(ack.stored, ack.received, ack.again) for ack in tracks.words()]


def publish(tracks, *packets, is_taken=True):
    for packet in packets:
        tracks.ends(packet, tracks.begins(packet) and is_taken)


def test_nothing_is_received_behind_what_the_stream_did_not_take(tracks):
    first, second = header(1, 3), header(4, 6)
    assert tracks.begins(first)
    assert tracks.begins(second)
    tracks.ends(first, False)
    tracks.ends(second, True)
    assert words(tracks) == [(0, 0, True)]
    assert not tracks.begins(header(7))
    publish(tracks, header(1, 6))
    assert words(tracks) == [(0, 6, False)]


def test_nothing_is_published_behind_a_hole_but_what_the_worker_has_no_more_is_none(tracks):
    publish(tracks, header(3))
    assert words(tracks) == [(0, 0, True)]
    publish(tracks, header(3, oldest=3))
    assert words(tracks) == [(0, 3, False)]


def test_what_the_trainer_misses_is_asked_for_and_published_again(tracks):
    publish(tracks, header(1, 9))
    tracks.words()
    tracks.on_ack(m.Ack("w", INCARNATION, 2, 5, again=True))
    assert words(tracks) == [(2, 5, True)]
    publish(tracks, header(6, 9))
    assert words(tracks) == [(2, 9, False)]


def test_what_the_trainer_has_stored_is_received_and_its_memory_alone_is_not(tracks):
    publish(tracks, header(1), is_taken=False)
    tracks.words()
    tracks.on_ack(m.Ack("w", INCARNATION, 0, 1))
    assert words(tracks) == [(0, 0, False)]
    tracks.on_ack(m.Ack("w", INCARNATION, 1, 1, trained=1))
    assert tracks.words() == [m.Ack("w", INCARNATION, 1, 1, trained=1)]


def test_who_is_forgotten_for_others_is_asked_again_for_what_is_not_stored():
    tracks = Tracks(max_processes=2)
    publish(tracks, *(header(1, worker=worker) for worker in "abc"))
    tracks.words()
    tracks.on_ack(m.Ack("a", INCARNATION, 1, 1))
    assert words(tracks) == []
    publish(tracks, header(2, worker="a"))
    assert words(tracks) == [(0, 0, True)]
