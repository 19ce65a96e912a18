"""Where an engine is, who this machine is to it, and how much it may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from tmrl_like.base.options import Options
from tmrl_like.errors import expect

_DEFAULT_PORT = 4222
_NODE = re.compile(r"(nats|tls)://(\[[0-9A-Fa-f:.]+\]|[^\s:/@,\[\]]+)(?::(\d{1,5}))?/?")

AtLeastMiB = Annotated[int, Meta(ge=1 << 20)]


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Options):
    """An engine between server and trainer.

    Attributes:
        nodes: its nodes, as `nats://host[:port]`, or `tls://host[:port]` for an encrypted
            connection; without a port 4222 is meant, without a scheme that of the node before. They
            are kept as `scheme://host:port`.
        run: name of the run; runs share an engine and see nothing of each other.
        max_bytes: that the engine keeps for a trainer, of this run; when they are full, the workers
            keep what follows.
        credentials: path of this machine's file of credentials (`.creds`); None: the nodes ask for
            none.
        ca: path of the certificate, in PEM, that signed the nodes' own; None: one that this machine
            trusts anyway.
    """

    nodes: tuple[str, ...]
    run: str
    max_bytes: AtLeastMiB = 8 << 30
    credentials: str | None = None
    ca: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        expect(bool(self.nodes), "engine", self.nodes, "at least one node")
        expect(bool(self.run), "run", self.run, "a name")
        nodes, scheme = [], ""
        for text in self.nodes:
            text = text.strip()
            nodes.append(_node_url(text if "://" in text else f"{scheme}{text}"))
            scheme = nodes[-1].partition("//")[0] + "//"
        object.__setattr__(self, "nodes", tuple(nodes))


def _node_url(text: str) -> str:
    """`scheme://host:port` of a node that a user names.

    Raises:
        ConfigError: it is not the address of one.
    """
    match = _NODE.fullmatch(text)
    is_address = match is not None and int(match[3] or 1) in range(1, 65536)
    expect(is_address, "engine", text, "nats://host[:port] or tls://host[:port], with commas")
    assert match is not None
    return f"{match[1]}://{match[2]}:{match[3] or _DEFAULT_PORT}"


def address_of(node: str) -> tuple[str, int]:
    """Host and port of a node, as `EngineOptions` keeps it."""
    parts = urlsplit(node)
    return parts.hostname or "", parts.port or _DEFAULT_PORT
