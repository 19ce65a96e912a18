"""Calls in a thread beside the caller's."""

import threading

from tmrl_like.base.threads import call_beside, thread_beside


def test_a_call_is_made_beside_and_here_where_executors_take_none_any_more():
    executor, made_by = thread_beside("tmrl-test"), []

    def call():
        made_by.append(threading.current_thread().name)

    call_beside(executor, call).result(10.0)
    executor.shutdown()
    assert call_beside(executor, call).done()
    assert made_by == ["tmrl-test_0", threading.current_thread().name]
