"""Calls of the system that fail."""

import os


def failing(number, real=None, where=lambda *arguments: True):
    """A function that raises the OSError of this number; where its arguments are others it does
    what `real` does.
    """

    def call(*arguments, **options):
        if real is None or where(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    return call
