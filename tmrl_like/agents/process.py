"""Process-wide settings that make training faster. Importing this module changes nothing."""

from __future__ import annotations

import torch

from tmrl_like.base.processes import keep_freed_memory

_KEEP_BYTES = 1 << 30


def tune_process(threads: int | None = None) -> None:
    """Set up the calling process for training. Call it once, from the thread that will train.

    - Denormal numbers count as zero (`torch.set_flush_denormal`): Adam's moments become denormal
      where gradients stay zero, and each of them costs a hundred cycles. The setting applies to the
      calling thread and to threads that it starts.
    - Freed memory is kept (`keep_freed_memory`): each step needs the same memory as the one before,
      and returning its pages and faulting them in again costs up to a tenth of a step.

    Args:
        threads: number of cores for one torch operation; None leaves torch's choice.
    """
    torch.set_flush_denormal(True)
    if threads is not None:
        torch.set_num_threads(threads)
    keep_freed_memory(_KEEP_BYTES)
