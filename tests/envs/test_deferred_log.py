"""Log lines are written by another thread."""

import logging

from tmrl_like.envs.deferred_log import DeferredLog


def test_lines_are_written_in_order_with_the_time_at_which_they_were_added(caplog, monkeypatch):
    caplog.set_level(logging.INFO)
    now = 100.25
    monkeypatch.setattr("tmrl_like.envs.deferred_log.time.time", lambda: now)
    late = DeferredLog(logging.getLogger("tmrl_like.worker"))
    late.add(logging.WARNING, "%d of %s", 1, "two")
    late.add(logging.DEBUG, "nobody asked")
    late.add(logging.INFO, "the end")
    assert not caplog.records
    now = 200.0
    late.write()
    late.write()
    assert [(r.created, r.msecs, r.levelname, r.getMessage()) for r in caplog.records] == [
        (100.25, 250.0, "WARNING", "1 of two"),
        (100.25, 250.0, "INFO", "the end"),
    ]


def test_of_too_many_lines_the_newest_are_kept(caplog):
    late = DeferredLog(logging.getLogger("tmrl_like.worker"))
    for number in range(1500):
        late.add(logging.WARNING, "%d", number)
    late.write()
    assert [r.getMessage() for r in caplog.records] == [str(number) for number in range(500, 1500)]
