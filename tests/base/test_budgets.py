"""Limits on what one peer may take of a shared resource."""

import logging

import pytest
from kit.clocks import Clock

from tmrl_like.base.budgets import Bucket, Lines, Newest, Turns


def test_a_bucket_gives_its_burst_and_then_what_has_come_in():
    bucket = Bucket(3, 0.5)
    assert [bucket.take(1, 10.0) for _ in range(4)] == [True, True, True, False]
    assert not bucket.take(1, 11.9)
    assert bucket.take(1, 12.0)
    assert bucket.take(3, 100.0)
    assert [bucket.take(1, now) for now in (100.0, 50.0, 51.0)] == [False] * 3  # it goes back


def test_of_very_many_names_the_oldest_are_forgotten():
    newest = Newest()
    for number in (*range(10_000), 0, 10_000):
        newest[number] = number
    assert len(newest) == 10_000
    assert {1} == {*range(10_001)} - newest.keys()


def test_lines_about_one_name_are_counted_beyond_its_budget_and_others_are_written(caplog):
    clock = Clock(100.0)
    say = Lines(logging.getLogger("tmrl_like.test"), 2, 0.1, clock)
    for _ in range(1000):
        say("bad", logging.WARNING, "bad is on fire")
    say("good", logging.WARNING, "good is here")
    assert [r.message for r in caplog.records] == ["bad is on fire"] * 2 + ["good is here"]
    caplog.clear()
    clock.now += 11
    say("bad", logging.WARNING, "bad is back")
    assert [r.message for r in caplog.records] == [
        "bad is back",
        "998 lines about bad were left out",
    ]


@pytest.mark.parametrize(
    ("before", "takes_s", "for_s", "turns"), [(5, 0.1, 0.5, 0), (50, 1.0, 8.0, 3)]
)
def test_a_peer_that_pauses_does_not_get_ahead_of_a_new_one_nor_fall_behind_it(
    before, takes_s, for_s, turns
):
    clock, served = Clock(100.0), []
    work = Turns(1000, 10_000, clock)

    def serve(item):
        name, item_takes_s = item
        clock.now += item_takes_s
        served.append(name)

    work.add("old", iter([("old", 1.0)] * before), 10)
    work.work(serve, 100.0)
    served.clear()
    work.add("new", iter([("new", takes_s)] * 50), 10)
    work.add("old", iter([("old", 1.0)] * 3), 10)
    work.work(serve, for_s)
    assert served.count("old") == turns


def test_what_waits_of_one_peer_and_of_all_is_bounded():
    turns = Turns(100, 300)
    assert [turns.add("bad", iter([1]), 40) for _ in range(4)] == [True, True, False, False]
    assert turns.add("bad2", iter([1]), 100)
    assert turns.add("good", iter([1]), 50)
    for i in range(10):
        assert turns.add(f"n{i}", iter([1]), 20)  # each name may have one
        assert not turns.add(f"n{i}", iter([1]), 100)
    turns.work(lambda item: None, 1e9)
    assert not turns
    assert turns.add("bad", iter([1]), 90)
