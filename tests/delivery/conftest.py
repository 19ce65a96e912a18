import contextlib

import pytest
from both_ends import Ends
from kit.packets import Stores

from tmrl_like.delivery import sample_log


@pytest.fixture
def ends():
    """Return a function that makes both ends of a worker's delivery; close those that a test leaves
    open.
    """
    with contextlib.ExitStack() as stack:

        def make(*arguments, **options):
            made = Ends(*arguments, **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def spool(ends, tmp_path):
    """Return a function that makes both ends with a spool on disk."""
    return lambda incarnation=1, root=tmp_path, **options: ends(root, incarnation, **options)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "log"


@pytest.fixture
def opened(folder):
    """An object that opens the store in the folder, and closes the one opened before."""
    with contextlib.ExitStack() as stack:
        yield Stores(folder, stack)


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(sample_log, "FILE_BYTES", 4096)
