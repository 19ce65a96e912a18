"""A site's own node on this machine, and clients that speak NATS plainly."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import nats
import nkeys
from engine_nodes import Nodes, free_ports

from tmrl_like.engine.authority import EngineUser
from tmrl_like.engine.broker import LEAF_ABOVE, nats_server, write_leaf_config
from tmrl_like.engine.subjects import inbox


class LeafNode:
    """The leaf of a site, which dials `port` of this machine; runs from entry to exit."""

    def __init__(self, folder: Path, site: EngineUser, port: int) -> None:
        """Write its configuration; its own ports are free ones."""
        self.folder = folder
        self._port, self._monitor = free_ports(2)
        self.url = f"tls://localhost:{self._port}"
        assert site.leaf is not None
        hub = [f"localhost:{port - LEAF_ABOVE}"]
        self._config = write_leaf_config(folder, site.leaf, hub, self._port, monitor_port=self._monitor)

    def __enter__(self) -> LeafNode:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([str(nats_server()), "-c", str(self._config)], stdout=log, stderr=log)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def crossed(self) -> tuple[int, int]:
        """Bytes from the hub and to it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/leafz", timeout=5) as answer:
            (link,) = json.load(answer)["leafs"]
        return link["in_bytes"], link["out_bytes"]


async def dial(url: str, user: EngineUser, **more: Any) -> nats.NATS:
    """A plain client, which tries for half a minute."""
    pair = nkeys.from_seed(user.seed.encode())

    async def hush(error: Exception) -> None: ...

    for attempt in range(300):
        try:
            return await nats.connect(
                url,
                tls=ssl.create_default_context(cadata=user.ca_certificate),
                tls_handshake_first=True,
                user_jwt_cb=user.jwt.encode,
                signature_cb=lambda nonce: base64.b64encode(pair.sign(nonce.encode())),
                inbox_prefix=inbox(user.name),
                error_cb=more.pop("error_cb", hush),
                allow_reconnect=False,
            )
        except (OSError, nats.errors.Error, TimeoutError):
            if attempt == 299:
                raise
            await asyncio.sleep(0.1)
    raise AssertionError


async def until(done: Callable[[], bool]) -> None:
    """Wait for it."""
    while not done():
        await asyncio.sleep(0.01)


def leaf_port(nodes: Nodes, i: int = 0) -> int:
    """Where a node listens for leaves."""
    return int(nodes.monitor(i, "varz")["leaf"]["port"])
