"""Log lines are written by another thread."""

import logging
import time

from tmrl_like.envs.deferred_log import DeferredLog


def test_the_newest_lines_are_written_in_order_with_the_times_at_which_they_were_added(caplog):
    caplog.set_level(logging.INFO)
    late = DeferredLog(logging.getLogger("tmrl_like.worker"))
    late.add(logging.DEBUG, "nobody asked")
    for number in range(1500):
        late.add(logging.WARNING, "%d of %s", number, "many")
    assert not caplog.records
    added_by = time.time()
    late.write()
    late.write()
    assert caplog.messages == [f"{n} of many" for n in range(500, 1500)]
    assert max(record.created for record in caplog.records) <= added_by
