"""How a server works."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.base.options import Options, Positive


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """How a server works.

    Attributes:
        min_samples_per_server_packet: the trainer receives nothing until that many samples wait.
        max_workers: one more is refused.
    """

    min_samples_per_server_packet: Positive = 1
    max_workers: Positive = 1000
