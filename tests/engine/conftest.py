import pytest
from engine_nodes import Nodes
from engine_rig import Rig


@pytest.fixture
def node(tmp_path):
    """An engine with one node."""
    with Nodes(tmp_path / "engine") as nodes:
        yield nodes


@pytest.fixture
def rig(node, tmp_path):
    rig = Rig(node, tmp_path)
    yield rig
    rig.close()
