"""A clock that a test sets."""


class Clock:
    """A clock that stands still until a test sets `now`."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now
