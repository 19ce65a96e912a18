"""Real nats-servers on this machine, configured by our own code."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from tmrl_like.engine.authority import Authority, EngineUser
from tmrl_like.engine.broker import CLUSTER_ABOVE, nats_server, write_config
from tmrl_like.transport import KeyFolder

_PATIENCE_S = 60.0


class Nodes:
    """One engine: its authority, and its nodes, which run from entry to exit.

    Attributes:
        folder: everything: `keys`, and per node `nodeN` with its configuration, its streams and `log`.
        keys: the key folder with the authority.
        authority: the authority.
        names: host:port of each node.
        urls: where each of them is dialled.
    """

    def __init__(self, folder: Path, count: int = 1, sync: bool = False) -> None:
        """Make the authority; ports are free ones."""
        ports = free_ports(3 * count)
        self.folder = folder
        self.keys = KeyFolder(folder / "keys")
        self.names = [f"localhost:{port}" for port in ports[:count]]
        self.urls = [f"tls://{name}" for name in self.names]
        self._monitors = ports[count : 2 * count]
        self.authority = Authority.create(self.keys, tuple(self.names))
        for i, name in enumerate(self.names):
            others = {"monitor_port": ports[count + i], "leaf_port": ports[2 * count + i]}
            write_config(self.home(i), self.authority.node(name), bind="127.0.0.1", sync=sync, **others)
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * count

    def home(self, i: int) -> Path:
        """A node's own folder."""
        return self.folder / f"node{i}"

    def user(self, name: str, role: str) -> EngineUser:
        """Invite somebody."""
        return self.authority.invite_user(name, role)

    def __enter__(self) -> Nodes:
        try:
            for i in range(len(self.names)):
                self.start(i, wait=False)
            for i in range(len(self.names)):
                self._wait_for(i)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End what runs."""
        for i in range(len(self.names)):
            self.kill(i)

    def start(self, i: int, wait: bool = True) -> None:
        """Start a node (again), and wait until it serves JetStream."""
        with (self.home(i) / "log").open("ab") as log:
            command = [str(nats_server()), "-c", str(self.home(i) / "nats-server.conf")]
            self.processes[i] = subprocess.Popen(command, stdout=log, stderr=log)
        if wait:
            self._wait_for(i)

    def kill(self, i: int, how: int = getattr(signal, "SIGKILL", signal.SIGTERM)) -> None:
        """End a node without a word, or with another signal."""
        process, self.processes[i] = self.processes[i], None
        if process is not None:
            process.send_signal(how)
            process.wait(_PATIENCE_S)

    def leader(self, stream: str) -> int | None:
        """Which node leads a stream; None while nobody does. Without a cluster: the only node."""
        for i, process in enumerate(self.processes):
            if process is not None:
                with contextlib.suppress(OSError):
                    for account in self.monitor(i, "jsz?streams=true&accounts=true").get("account_details", []):
                        for found in account.get("stream_detail", []):
                            leader = found.get("cluster", {}).get("leader")
                            if found["name"] == stream and (leader or len(self.names) == 1):
                                return self.names.index(leader) if leader else 0
        return None

    def monitor(self, i: int, what: str) -> dict:
        """A node's own statistics: varz, connz, jsz, leafz, …"""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitors[i]}/{what}", timeout=5) as answer:
            return json.load(answer)

    def log(self, i: int) -> str:
        """What a node has written so far."""
        return (self.home(i) / "log").read_text(errors="replace")

    def _wait_for(self, i: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            process = self.processes[i]
            assert process is not None
            assert process.poll() is None, f"node {i} ended:\n{self.log(i)}"
            with contextlib.suppress(OSError):
                if self.monitor(i, "healthz").get("status") == "ok":
                    return
            assert time.monotonic() < deadline, f"node {i} is not well:\n{self.log(i)}"
            time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, and whose cluster ports nobody listens on."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            with contextlib.suppress(OSError, OverflowError):
                probe = stack.enter_context(socket.socket())
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port + CLUSTER_ABOVE))
                found.append(port)
    return found
