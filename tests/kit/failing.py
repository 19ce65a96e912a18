"""System calls that fail, and streams that take nothing."""

import os
from pathlib import Path


def failing(number, real=None, where=lambda *arguments: True):
    """Return a function that raises the OSError with this errno. If `real` is given, arguments for
    which `where` is false are passed to `real` instead.
    """

    def call(*arguments, **options):
        if real is None or where(*arguments):
            raise OSError(number, os.strerror(number))
        return real(*arguments, **options)

    return call


def failing_for_want_of_memory(*arguments, **options):
    raise MemoryError


def without_a_reader():
    """Return a text stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w", buffering=1, encoding="utf-8")


def with_a_full_disk():
    """Return a text stream to a full disk."""
    return Path("/dev/full").open("w", buffering=1, encoding="utf-8")
