"""Memory that a call or a process takes."""

import tracemalloc

import psutil


def peak_of(call):
    """Return a call's result and its peak memory, without that of C libraries."""
    tracemalloc.start()
    try:
        returned = call()
        return returned, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def memory_of(pid=None):
    """Return the memory of a process, by default this one, that of C libraries included."""
    return psutil.Process(pid).memory_info().rss
