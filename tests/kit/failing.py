"""System calls that fail."""

import os


def failing(number, real=None, where=lambda *arguments: True):
    """Return a function that raises the OSError with this errno. If `real` is given, arguments for
    which `where` is false are passed to `real` instead.
    """

    def call(*arguments, **options):
        if real is None or where(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    return call
