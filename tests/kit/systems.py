"""Marks of tests that need what not every system has."""

import os
from pathlib import Path

import pytest

has_dev_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
may_link = pytest.mark.skipif(
    os.name == "nt", reason="there a link needs a right that few users have"
)
