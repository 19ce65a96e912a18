"""How a server works."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.base.options import at_least


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server works.

    Attributes:
        min_samples_per_server_packet: the trainer receives nothing until that many samples wait.
        max_workers: one more is refused.
    """

    min_samples_per_server_packet: int = 1
    max_workers: int = 1000

    def __post_init__(self) -> None:
        at_least(self, 1, "min_samples_per_server_packet", "max_workers")
