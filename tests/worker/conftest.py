import pytest

from tmrl_like.testing.fakes import ListMemory


class Rows(ListMemory):
    """Keeps what arrives as (episode, step), by stream."""

    arrived: dict

    def append(self, buffer):
        super().append(buffer)
        rows = self.arrived.setdefault(buffer.stream, [])
        rows += [tuple(map(int, sample.obs)) for sample in buffer.memory]


@pytest.fixture
def rows():
    """A class of memories of a `CountingEnv`'s samples, and what arrived in them."""
    return type("Rows", (Rows,), {"arrived": {}})
