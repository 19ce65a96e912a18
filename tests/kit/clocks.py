"""A clock that a test sets."""


class Clock:
    """Stands still until it is set."""

    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now
