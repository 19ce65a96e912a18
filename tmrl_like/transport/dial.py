"""How a worker or a trainer reaches its server: the keywords that both constructors take."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from tmrl_like.transport.base import TransportOptions


class Dial(TypedDict, total=False):
    """What is left out is as the configuration says.

    Attributes:
        server_port: the server's port; None: `cfg.PORT`, which is 7790 unless set.
        transport: "zmq", "tlspyo" or "inproc"; the server's.
        keys_dir: where this machine's key is; None: `cfg.KEYS_FOLDER`.
        name: this peer's name, unique among those of its role; None: made from host and process.
        limits: of the transport.
    """

    server_port: int | None
    transport: str
    keys_dir: str | Path | None
    name: str | None
    limits: TransportOptions | None
