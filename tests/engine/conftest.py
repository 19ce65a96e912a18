from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_nodes import Nodes


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Nodes]:
    """An engine of one node."""
    with Nodes(tmp_path / "engine") as nodes:
        yield nodes
