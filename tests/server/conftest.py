import pytest
from kit.relays import Scene


@pytest.fixture
def scene():
    return Scene()
