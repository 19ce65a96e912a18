"""Options of a server."""

from __future__ import annotations

from dataclasses import dataclass

from tmrl_like.base.options import Options, Positive


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """Options of a server.

    Attributes:
        min_samples_per_server_packet: the trainer receives nothing until this many samples, or
            4 MiB, wait.
        max_workers: maximum number of connected workers; further ones are refused.
    """

    min_samples_per_server_packet: Positive = 1
    max_workers: Positive = 1000
