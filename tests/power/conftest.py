import pytest

from tmrl_like.delivery import sample_store
from tmrl_like.trainer import checkpoints


@pytest.fixture(autouse=True)
def what_a_kept_run_changes(monkeypatch):
    """Comes back when the test is over."""
    for owner, name in (
        (checkpoints, "thread_beside"),
        (sample_store, "SMALL_BYTES"),
        (sample_store, "_SMALL_FILES"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
