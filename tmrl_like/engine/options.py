"""Where an engine is, and how much it may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tmrl_like.base.options import at_least
from tmrl_like.errors import expect

DEFAULT_PORT = 4222
_NODE = re.compile(r"(?:tls://)?(\[[0-9A-Fa-f:.]+\]|[^\s:/@,\[\]]+)(?::(\d{1,5}))?/?")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """An engine between server and trainer.

    Attributes:
        nodes: its nodes, each as `tls://host[:port]` or `host[:port]`; without a port 4222 is meant. They are kept as
            `tls://host:port`.
        run: name of the run; runs share an engine and see nothing of each other.
        max_bytes: that the engine keeps for a trainer, of this run; when they are full, the workers keep what follows.
    """

    nodes: tuple[str, ...]
    run: str
    max_bytes: int = 8 << 30

    def __post_init__(self) -> None:
        expect(bool(self.nodes), "engine", self.nodes, "at least one node")
        expect(bool(self.run), "run", self.run, "a name")
        at_least(self, 1 << 20, "max_bytes")
        object.__setattr__(self, "nodes", tuple(map(node_url, self.nodes)))


def node_url(text: str) -> str:
    """`tls://host:port` of a node that a user names.

    Raises:
        ConfigError: it is not the address of one.
    """
    match = _NODE.fullmatch(text.strip())
    expect(
        match is not None and int(match[2] or 1) in range(1, 65536), "engine", text, "tls://host[:port], with commas"
    )
    assert match is not None
    return f"tls://{match[1]}:{match[2] or DEFAULT_PORT}"


def address_of(node: str) -> tuple[str, int]:
    """Host and port of a node, as `node_url` understands it."""
    host, _, port = node_url(node).removeprefix("tls://").rpartition(":")
    return host.strip("[]"), int(port)
