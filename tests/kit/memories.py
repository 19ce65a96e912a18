"""What tests ask of a replay memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tmrl_like.types import Batch


def gather(memory: Any, items: Sequence[int]) -> Batch:
    """The batch of these items."""
    size, memory.batch_size = memory.batch_size, len(items)
    memory.sample_indices = lambda: np.asarray(items)
    memory.seed(0)
    batch: Batch = memory.sample()
    del memory.sample_indices
    memory.batch_size = size
    return batch
