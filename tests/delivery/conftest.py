from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kit.packets import Logs


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Logs]:
    """Opens the packet log in tmp_path / "log"."""
    with ExitStack() as stack:
        yield Logs(tmp_path / "log", stack)
