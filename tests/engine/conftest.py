from contextlib import ExitStack, closing

import pytest
from engine_nodes import Nodes
from engine_rig import Rig


@pytest.fixture
def node(tmp_path):
    """An engine with one node."""
    with Nodes(tmp_path / "engine") as nodes:
        yield nodes


@pytest.fixture
def rig_with(tmp_path):
    """Return a function that starts a node with these options, and returns a rig at it."""
    with ExitStack() as stack:

        def start(**options):
            nodes = stack.enter_context(Nodes(tmp_path / "engine", **options))
            return stack.enter_context(closing(Rig(nodes, tmp_path)))

        yield start


@pytest.fixture
def rig(rig_with):
    return rig_with()
