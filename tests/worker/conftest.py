from typing import ClassVar

import pytest
from kit.fakes import ListMemory


@pytest.fixture
def rows():
    """A memory class for samples of a `CountingEnv`; its attribute `arrived` holds those that
    arrived as (episode, step), by stream.
    """

    class Rows(ListMemory):
        arrived: ClassVar = {}

        def append(self, buffer):
            super().append(buffer)
            rows = self.arrived.setdefault(buffer.stream, [])
            rows += [tuple(map(int, sample.obs)) for sample in buffer.memory]

        @classmethod
        def count(cls):
            """Return how many samples have arrived."""
            return sum(map(len, cls.arrived.values()))

    return Rows
