"""`tmrl-like show`: `test --show` without end."""

from tmrl_like.cli.test import main

__all__ = ["main"]
