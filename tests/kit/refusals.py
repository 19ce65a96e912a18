"""A user's mistake is one line that says what is wrong."""

import contextlib

import pytest

from tmrl_like.errors import ConfigError


@contextlib.contextmanager
def one_line(says, error=ConfigError):
    """What is done in it raises `error` with one line, in which `says` is found as a regular
    expression.
    """
    with pytest.raises(error, match=says) as refused:
        yield
    assert "\n" not in str(refused.value)
