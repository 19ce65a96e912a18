"""When a worker sends packets, and how much it keeps until the trainer has stored it."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.base.options import NotNegative, Options, Positive


@dataclass(frozen=True, kw_only=True)
class OutboxOptions(Options):
    """When a worker sends packets, and how much it keeps.

    Attributes:
        min_samples: no packet is sent with fewer samples, except one of 8 MiB, reports of finished
            episodes, and what precedes a break: a fault, or samples that were dropped.
        max_samples: a packet is sent when it has this many samples; in a backlog a packet holds up
            to 20 times as many.
        max_packet_bytes: a packet is also sent when it is this large, before compression, and has
            `min_samples`.
        max_age_s: a packet is also sent when its first sample has waited this long, if it has
            `min_samples`.
        max_bytes: maximum size of the samples kept in shared memory until the trainer has stored
            them; beyond it, new ones are dropped and counted.
        spool_max_bytes: the same on disk, with a spool; what earlier processes left there counts.
        window_bytes: maximum number of bytes in flight.
        patience_s: what is not stored is sent again when nothing was acknowledged for this long,
            then twice as long, and so on, up to a minute.
    """

    min_samples: Positive = 1
    max_samples: Positive = 100
    max_packet_bytes: Positive = 256 << 10
    max_age_s: NotNegative = 0.1
    max_bytes: Positive = 512 << 20
    spool_max_bytes: Positive = 2 << 30
    window_bytes: Positive = 32 << 20
    patience_s: NotNegative = 5.0

    def kept_bytes(self, is_private: bool) -> int:
        """Return how many bytes a worker keeps, in a private folder in shared memory or in a
        spool.
        """
        return self.max_bytes if is_private else self.spool_max_bytes
