"""Samples as `ReplayMemory` takes them: whole columns of a packet, or single samples brought into that form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from tmrl_like.errors import MemoryContractError
from tmrl_like.replay.columns import Array
from tmrl_like.types import Block, Buffer, Sample
from tmrl_like.wire.columns import Columns, columns_of
from tmrl_like.wire.schema import Node, TupleNode, schema_of

NAMES = ("act", "obs", "rew", "terminated", "truncated")  # a sample without its info
ACT, OBS, REW = range(3)


class RowBlock:
    """Single samples in the form of a packet's block."""

    def __init__(self, samples: list[Sample]) -> None:
        self._samples = samples
        plain = [tuple(sample[: len(NAMES)]) for sample in samples]
        self.segments = tuple(columns_of(list(run)) for _, run in groupby(plain, schema_of))
        self.is_reset = np.array([getattr(sample.info, "is_reset", False) for sample in samples], np.bool_)

    def samples(self) -> list[Sample]:
        return self._samples


def blocks_of(buffer: Buffer) -> Sequence[Block | RowBlock]:
    """The samples as columns, whichever way they came."""
    return buffer.blocks or (RowBlock(buffer.memory),)


def with_resets(block: Block | RowBlock) -> Iterator[tuple[Columns, Array]]:
    """Each segment with its part of `is_reset`."""
    start = 0
    for segment in block.segments:
        yield segment, block.is_reset[start : start + segment.rows]
        start += segment.rows


def nodes_of(schema: Node) -> Sequence[Node]:
    """The structures of a sample's fields, without info.

    Raises:
        MemoryContractError: it is not the number of items of a sample.
    """
    if not isinstance(schema, TupleNode) or len(schema.items) < len(NAMES):
        raise MemoryContractError(f"a sample is a tuple ({', '.join(NAMES)}, info), not {schema!r:.80}")
    return schema.items[: len(NAMES)]
