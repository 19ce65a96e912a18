"""The keyword arguments by which workers and trainers connect to their server."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from tmrl_like.transport.base import TransportOptions


class Dial(TypedDict, total=False):
    """How to connect to a server. Keywords left out have the values of the configuration.

    Attributes:
        server_port: the server's port; None: `cfg.PORT`, which is 7790 unless set.
        transport: "zmq", "tlspyo" or "inproc", the same as the server's.
        keys_dir: the folder with this machine's key; None: `cfg.KEYS_FOLDER`.
        name: this peer's name, unique among those of its role; None: a new name, made from the host
            name and the process id.
        limits: limits of the transport.
    """

    server_port: int | None
    transport: str
    keys_dir: str | Path | None
    name: str | None
    limits: TransportOptions | None
