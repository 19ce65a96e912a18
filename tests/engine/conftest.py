import pytest
from engine_nodes import Nodes


@pytest.fixture
def node(tmp_path):
    """An engine of one node."""
    with Nodes(tmp_path / "engine") as nodes:
        yield nodes
