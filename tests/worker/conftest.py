import pytest
from kit.fakes import ListMemory


class Rows(ListMemory):
    """A memory that keeps arriving samples as (episode, step), by stream."""

    arrived: dict

    def append(self, buffer):
        super().append(buffer)
        rows = self.arrived.setdefault(buffer.stream, [])
        rows += [tuple(map(int, sample.obs)) for sample in buffer.memory]


@pytest.fixture
def rows():
    """A memory class for samples of a `CountingEnv`; its attribute `arrived` holds what arrived."""
    return type("Rows", (Rows,), {"arrived": {}})
