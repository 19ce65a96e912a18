import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Each test has a data folder of its own and leaves the user's alone."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.delenv("TMRL_LIKE_HOME", raising=False)
    monkeypatch.delenv("TMRL_LIKE_RUN", raising=False)
    yield home
    logging.getLogger("tmrl_like").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def denormals_stay() -> Iterator[None]:
    """Flushing denormals is a state of the processor; left on, it changes the arithmetic of later tests."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def until() -> Callable[..., None]:
    """Wait for a condition, with a deadline; fail with its name."""

    def wait(condition: Callable[[], object], within_s: float = 10.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {within_s} s"
            time.sleep(0.005)

    return wait
