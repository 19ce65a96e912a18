import pytest
from relay_kit import Scene


@pytest.fixture
def scene():
    return Scene()
