"""When a worker's packets leave, and how much is kept until the trainer has stored it."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.base.options import NotNegative, Options, Positive


@dataclass(frozen=True, kw_only=True)
class OutboxOptions(Options):
    """When packets leave, and how much is kept.

    Attributes:
        min_samples: a packet never leaves with fewer samples (but for the reports of finished
            episodes).
        max_samples: a packet leaves when it has this many; in a backlog it holds up to 20 times as
            many.
        max_packet_bytes: or when it is this large, before compression, and has `min_samples`.
        max_age_s: a packet leaves when its first sample is this old, if it has `min_samples`.
        max_bytes: bytes kept in shared memory until the trainer has stored them; beyond, the oldest
            are dropped and counted.
        spool_max_bytes: the same on disk, with a spool.
        window_bytes: bytes that may be in flight at once.
    """

    min_samples: Positive = 1
    max_samples: Positive = 100
    max_packet_bytes: Positive = 256 << 10
    max_age_s: NotNegative = 0.1
    max_bytes: Positive = 512 << 20
    spool_max_bytes: Positive = 2 << 30
    window_bytes: Positive = 32 << 20

    def kept_bytes(self, is_private: bool) -> int:
        """What a worker keeps, in a private folder in shared memory or in a spool."""
        return self.max_bytes if is_private else self.spool_max_bytes
