"""The promise that a user's mistake gives one line which names it."""

import contextlib

import pytest

from tmrl_like.errors import ConfigError


@contextlib.contextmanager
def one_line(says, error=ConfigError):
    """Assert that the block raises `error` with a message of one line that matches the regular
    expression `says`, and yield what holds it as `value`.
    """
    with pytest.raises(error, match=says) as refused:
        yield refused
    assert "\n" not in str(refused.value)
