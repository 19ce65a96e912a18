"""When a worker's packets leave, and how much of them is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tmrl_like.base.options import at_least


@dataclass(frozen=True, kw_only=True)
class OutboxOptions:
    """When packets leave, and how much is kept.

    Attributes:
        min_samples: a packet never leaves with fewer samples (but for the reports of finished episodes).
        max_samples: a packet leaves when it has this many.
        max_packet_bytes: or when it is this large, before compression, and has `min_samples`.
        max_age_s: a packet leaves when its first sample is this old, if it has `min_samples`.
        max_bytes: bytes kept in memory until the trainer has stored them; beyond, the oldest packets are on disk alone
            or, where they are not on disk, dropped and counted.
        max_held_samples: the same, in samples.
        spool_max_bytes: bytes kept on disk, with a spool; beyond, the oldest packets are dropped and counted.
        window_bytes: bytes that may be in flight at once.
    """

    min_samples: int = 1
    max_samples: int = 100
    max_packet_bytes: int = 256 << 10
    max_age_s: float = 0.1
    max_bytes: int = 512 << 20
    max_held_samples: int = 10_000_000
    spool_max_bytes: int = 2 << 30
    window_bytes: int = 32 << 20

    def __post_init__(self) -> None:
        at_least(self, 1, "min_samples", "max_samples", "max_packet_bytes", "max_bytes", "max_held_samples")
        at_least(self, 1, "spool_max_bytes", "window_bytes")
        at_least(self, 0, "max_age_s")

    def divided(self, by: int) -> OutboxOptions:
        """Of each of `by` lanes, which share what is kept."""
        kept = ("max_bytes", "max_held_samples", "spool_max_bytes", "window_bytes")
        return replace(self, **{name: max(1, getattr(self, name) // by) for name in kept})
