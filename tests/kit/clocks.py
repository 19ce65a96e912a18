"""A clock that a test sets."""


class Clock:
    """A clock that stands still until a test sets `now`."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


class LoopTime:
    """Stands in for the module `time` in a control loop; a test sets `now`, and sleeping adds to
    it.
    """

    def __init__(self, now=1000.0):
        self.now = now

    def perf_counter(self):
        return self.now

    monotonic = perf_counter

    def time(self):
        return 1e9 + self.now

    def sleep(self, seconds):
        self.now += seconds
