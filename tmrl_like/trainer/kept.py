"""What a checkpoint keeps beside what was learnt and counted."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.types import Receipt


@dataclass
class Kept:
    """Belongs to a training, and is saved with it.

    Attributes:
        version: of the policy published last; 0: none was.
        receipts: the entries of workers that its memory holds.
        uncounted_samples: `total_samples` is so many more than were ever stored; None: as many as a data set has.
    """

    version: int = 0
    receipts: tuple[Receipt, ...] = ()
    uncounted_samples: int | None = None
