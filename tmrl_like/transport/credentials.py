"""Keys: who may connect, and as what.

On the server's machine a folder holds everything; the first part that starts there makes it::

    keys/
      server.json           the server's own key pair (CURVE), TLS key and certificate
      peer.json             this machine's key as a peer; the parts on one machine just work
      authorized/NAME.json  public key and roles of each peer that may connect

`invite` makes a key for another machine and prints it as one line; `join` on that machine writes it to
its `peer.json`. `revoke` removes a peer's file: the server refuses it from then on and closes what it
has open. Secrets are files of their owner only.
"""

from __future__ import annotations

import base64
import datetime
import logging
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from tmrl_like.errors import CredentialsError
from tmrl_like.files import write_atomically
from tmrl_like.transport.base import Identity

log = logging.getLogger(__name__)

ROLES = ("worker", "trainer")
_LINE_PREFIX = "tmrl-like-key-1."
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOCAL = "local"


class ServerKeys(msgspec.Struct, frozen=True):
    """The server's secrets. `curve_*` are Z85 text, `tls_*` PEM text; `password` guards the TLS relay."""

    curve_public: str
    curve_secret: str
    tls_key: str
    tls_certificate: str
    password: str


class PeerKeys(msgspec.Struct, frozen=True):
    """A peer's secrets and how it recognises the server."""

    name: str
    roles: tuple[str, ...]
    curve_public: str
    curve_secret: str
    server_curve_public: str
    tls_certificate: str  # the server's, PEM
    password: str


class Authorized(msgspec.Struct, frozen=True):
    """What the server keeps of a peer: nothing secret."""

    roles: tuple[str, ...]
    curve_public: str


T = TypeVar("T", ServerKeys, PeerKeys, Authorized)


@dataclass(frozen=True)
class KeyFolder:
    """The keys of one machine."""

    path: Path

    def server_keys(self) -> ServerKeys:
        """The server's keys; made now if this machine has none at all.

        Raises:
            CredentialsError: this machine only joined another server, or the file is damaged or readable
                by others.
        """
        if not (self.path / "server.json").exists():
            if (self.path / "peer.json").exists():
                raise CredentialsError(
                    f"{self.path} holds a key that joins another machine's server; to run a server here "
                    "give it a folder of its own (--server.keys_dir FOLDER)"
                )
            self._create()
        return _read(self.path / "server.json", ServerKeys, secret=True)

    def peer_keys(self) -> PeerKeys:
        """This machine's key as a peer; made now, with a server's, if there are no keys at all.

        Raises:
            CredentialsError: the file is damaged or readable by others.
        """
        if not (self.path / "peer.json").exists() and not (self.path / "server.json").exists():
            self._create()
        return _read(self.path / "peer.json", PeerKeys, secret=True)

    def identities(self) -> dict[str, Identity]:
        """Public key -> identity of all peers that may connect now."""
        found = {}
        for file in sorted((self.path / "authorized").glob("*.json")):
            try:
                entry = _read(file, Authorized, secret=False)
            except CredentialsError as error:
                log.warning("%s; this key is refused", error)
                continue
            found[entry.curve_public] = Identity(file.stem, entry.roles)
        return found

    def invite(self, name: str, roles: tuple[str, ...] = ("worker",)) -> str:
        """Make a key for another machine and return it as one line, to be pasted into `join` there.

        Raises:
            CredentialsError: the name is taken or not usable, or this is not the server's machine.
        """
        server = self.server_keys()
        _check_name(name)
        if (self.path / "authorized" / f"{name}.json").exists():
            raise CredentialsError(f"there is a key named {name!r} already; revoke it first or take another name")
        keys = self._authorize(server, name, roles)
        return _LINE_PREFIX + base64.urlsafe_b64encode(msgspec.msgpack.encode(keys)).decode().rstrip("=")

    def join(self, line: str) -> PeerKeys:
        """Store a line made by `invite` as this machine's key.

        Raises:
            CredentialsError: not such a line, or this machine has another key already.
        """
        keys = _parse_line(line)
        if (self.path / "server.json").exists():
            raise CredentialsError(
                f"{self.path} holds a server's keys; join from another folder (--keys_dir) or remove it"
            )
        write_atomically(self.path / "peer.json", msgspec.json.encode(keys), private=True)
        return keys

    def revoke(self, name: str) -> None:
        """Refuse the key of that name from now on.

        Raises:
            CredentialsError: there is none.
        """
        _check_name(name)
        try:
            (self.path / "authorized" / f"{name}.json").unlink()
        except FileNotFoundError:
            known = ", ".join(sorted(i.name for i in self.identities().values())) or "none"
            raise CredentialsError(f"no key is named {name!r}; there are: {known}") from None

    def _authorize(self, server: ServerKeys, name: str, roles: tuple[str, ...]) -> PeerKeys:
        public, secret = _curve_pair()
        entry = Authorized(roles, public)
        write_atomically(self.path / "authorized" / f"{name}.json", msgspec.json.encode(entry))
        return PeerKeys(name, roles, public, secret, server.curve_public, server.tls_certificate, server.password)

    def _create(self) -> None:
        """Make all keys in a folder beside, then rename: two parts that start at once agree on one set."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = KeyFolder(self.path.with_name(f".{self.path.name}.{os.getpid()}.{secrets.token_hex(4)}"))
        draft.path.mkdir(mode=0o700)
        try:
            server = _new_server_keys()
            write_atomically(draft.path / "server.json", msgspec.json.encode(server), private=True)
            peer = draft._authorize(server, _LOCAL, ROLES)
            write_atomically(draft.path / "peer.json", msgspec.json.encode(peer), private=True)
            if self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()
            draft.path.rename(self.path)
        except OSError as error:
            if not (self.path / "server.json").exists():
                raise CredentialsError(f"cannot write keys to {self.path}: {error}") from None
        finally:
            shutil.rmtree(draft.path, ignore_errors=True)


def _new_server_keys() -> ServerKeys:
    public, secret = _curve_pair()
    key, certificate = _tls_pair()
    return ServerKeys(public, secret, key, certificate, secrets.token_urlsafe(24))


def _curve_pair() -> tuple[str, str]:
    import zmq

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _tls_pair() -> tuple[str, str]:
    """A P-256 key and its self-signed certificate for the host name "default", in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "default")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=365 * 100))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("default")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private.decode(), certificate.public_bytes(pem).decode()


def _parse_line(line: str) -> PeerKeys:
    text = line.strip()
    if not text.startswith(_LINE_PREFIX):
        raise CredentialsError(f"expected the line that `tmrl-like keys invite` printed ({_LINE_PREFIX}…)")
    text = text.removeprefix(_LINE_PREFIX)
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=PeerKeys)
    except (ValueError, msgspec.MsgspecError):
        raise CredentialsError("the line is incomplete or damaged; copy all of what `keys invite` printed") from None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise CredentialsError(f"{name!r} is no name for a key: use up to 64 letters, digits, '.', '_' and '-'")


def _read(path: Path, kind: type[T], secret: bool) -> T:
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from None
    if secret and os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CredentialsError(f"{path} is a secret that others can read; run: chmod 600 {path}")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CredentialsError(f"{path} is damaged ({error}); restore it, or start anew without the folder") from None
