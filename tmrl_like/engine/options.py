"""The address of an engine, this machine's credentials for it, and how much it may hold."""

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
    """An engine between servers and trainer.

    Attributes:
        nodes: addresses of its nodes, as `nats://host[:port]`, or `tls://host[:port]` for an
            encrypted connection. The default port is 4222, the default scheme that of the previous
            node. They are stored as `scheme://host:port`.
        run: name of the run; runs can share an engine without seeing each other.
        max_bytes: maximum number of bytes of this run that the engine holds for the trainer; when
            it is full, the workers keep later samples.
        credentials: path of this machine's credentials file (`.creds`); None: the nodes require no
            credentials.
        ca: path of the PEM certificate that signed the nodes' certificates; None: they are signed
            by an authority that this machine trusts anyway.
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
    """Return the `scheme://host:port` of a node that a user has named.

    Raises:
        ConfigError: this is not the address of a node.
    """
    match = _NODE.fullmatch(text)
    is_address = match is not None and int(match[3] or 1) in range(1, 65536)
    expect(is_address, "engine", text, "nats://host[:port] or tls://host[:port], with commas")
    assert match is not None
    return f"{match[1]}://{match[2]}:{match[3] or _DEFAULT_PORT}"


def address_of(node: str) -> tuple[str, int]:
    """Return the host and port of a node, in the form that `EngineOptions` stores."""
    parts = urlsplit(node)
    return parts.hostname or "", parts.port or _DEFAULT_PORT
