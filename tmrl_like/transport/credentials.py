"""Keys: which peers may connect, and in which roles.

On the server's machine one folder holds all keys; the first part that starts there creates it, or
fills it if it is empty::

    keys/
      server.json           the server's own key pair (CURVE), TLS key and certificate
      peer.json             this machine's own key as a peer: local parts need no setup
      authorized/NAME.json  public key and roles of each peer that may connect

`invite` makes a key for another machine and returns it as one line; `join` on that machine writes
it to its `peer.json`. `revoke` removes a peer's file. The server refuses the peer a second or two
later, when two reads of the folder have not found the file, and discards what its connections still
send. Files with secrets are readable by their owner only.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import errno
import logging
import os
import re
import stat
import time
import zlib
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from tmrl_like.base.budgets import Bucket, Lines
from tmrl_like.base.checked import checked_json, read_checked
from tmrl_like.base.files import disk, lock_folder, remove_drafts, write_atomically
from tmrl_like.errors import CredentialsError
from tmrl_like.transport.base import REVOKED, Identity

log = logging.getLogger(__name__)

ROLES = ("worker", "trainer")
_LINE_PREFIX = "tmrl-like-key-2."
_LINE_BYTES = 1 << 16  # of a line's content, at most
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_LOCAL = "local"
KEYS_CHECK_S = 1.0
_LOCK, _LOCKED_WITHIN_S = "lock", 10.0
_UNFINISHED = "unfinished"  # is in a folder from before its first key until after `server.json`

_Z85 = r"\A[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40}\Z"
Z85: TypeAlias = Annotated[str, msgspec.Meta(pattern=_Z85)]
_Stamp: TypeAlias = tuple[int, ...]


class ServerKeys(msgspec.Struct, frozen=True):
    """The server's secrets. `tls_*` are PEM text."""

    curve_public: Z85
    curve_secret: Z85
    tls_key: str
    tls_certificate: str


class PeerKeys(msgspec.Struct, frozen=True):
    """A peer's secrets, and the public key and certificate by which it recognises the server."""

    name: str
    roles: tuple[str, ...]
    curve_public: Z85
    curve_secret: Z85
    server_curve_public: Z85
    tls_certificate: str  # the server's, PEM


class Authorized(msgspec.Struct, frozen=True):
    """What the server stores about a peer; nothing of it is secret."""

    roles: tuple[str, ...]
    curve_public: Z85


T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class KeyFolder:
    """The keys of one machine."""

    path: Path

    def server_keys(self) -> ServerKeys:
        """Return the server's keys; create them if this machine has no keys at all.

        Raises:
            CredentialsError: this machine has joined another server, or the file is damaged or
                readable by others.
        """
        self._create_first()
        if not (self.path / "server.json").exists():
            raise CredentialsError(
                f"{self.path} holds a key that joins another machine's server, where keys are "
                "invited; to run a server here give it a folder of its own (--server.keys_dir "
                "FOLDER)"
            )
        return read_keys(self.path / "server.json", ServerKeys)

    def peer_keys(self) -> PeerKeys:
        """Return this machine's key as a peer; create it, and a server's, if there are no keys.

        Raises:
            CredentialsError: the file is damaged or readable by others.
        """
        self._create_first()
        return read_keys(self.path / "peer.json", PeerKeys)

    def invite(self, name: str, roles: tuple[str, ...] = ("worker",)) -> str:
        """Make a key for another machine and return it as one line, to be passed to `join` there.

        Raises:
            CredentialsError: the name is taken or invalid, or this is not the server's machine.
        """
        server = self.server_keys()
        if self._file_of(name).exists():
            raise CredentialsError(
                f"there is a key named {name!r} already; revoke it first or take another name"
            )
        keys = self._authorize(server, name, roles)
        # with its checksum, and short enough for a terminal of macOS, which takes 1,024 characters
        content = zlib.compress(msgspec.msgpack.encode(keys))
        return _LINE_PREFIX + base64.urlsafe_b64encode(content).decode().rstrip("=")

    def join(self, line: str) -> PeerKeys:
        """Store a line made by `invite` as this machine's key.

        Raises:
            CredentialsError: the line is not from `invite`, or this folder holds the keys of
                another server.
        """
        text = line.strip()
        if not text.startswith(_LINE_PREFIX):
            raise CredentialsError(
                f"expected the line that `tmrl-like keys invite` printed ({_LINE_PREFIX}…)"
            )
        text = text.removeprefix(_LINE_PREFIX)
        try:
            content = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            unpacked = zlib.decompressobj()
            data = unpacked.decompress(content, _LINE_BYTES)
            if not unpacked.eof:  # cut off, or larger than a key
                raise ValueError
            keys = msgspec.msgpack.decode(data, type=PeerKeys)
        except (ValueError, zlib.error):
            raise CredentialsError(
                "the line is incomplete or damaged; copy all of what `keys invite` printed"
            ) from None
        is_server = (self.path / "server.json").exists()
        if is_server and self.server_keys().curve_public != keys.server_curve_public:
            raise CredentialsError(
                f"{self.path} holds the keys of another server; join from another folder "
                "(--keys-dir) or remove it"
            )
        disk.remove(self.path / _UNFINISHED)  # else the next start would replace this key
        self.write("peer.json", keys)
        return keys

    def revoke(self, name: str) -> None:
        """Revoke the key of this name.

        Raises:
            CredentialsError: there is no such key.
        """
        file = self._file_of(name)
        if not file.exists():
            known = ", ".join(sorted(other.stem for other in file.parent.glob("*.json")))
            raise CredentialsError(f"no key is named {name!r}; there are: {known or 'none'}")
        disk.remove(file)
        disk.sync_folder(file.parent)

    def write(self, name: str, content: msgspec.Struct) -> None:
        """Write a file of this folder; once this returns, the file survives a power cut."""
        file = self.path / name
        write_atomically(file, checked_json(content), private=_is_secret(type(content)))
        disk.sync_folder(file.parent)
        remove_drafts(file.parent)

    def _file_of(self, name: str) -> Path:
        """Return the file of the key of this name; raise CredentialsError if it is no name."""
        if not _NAME.fullmatch(name):
            raise CredentialsError(
                f"{name!r} is not a name for a key: use up to 64 letters, digits, '.', '_' and '-'"
            )
        return self.path / "authorized" / f"{name}.json"

    def _authorize(self, server: ServerKeys, name: str, roles: tuple[str, ...]) -> PeerKeys:
        public, secret = _curve_pair()
        self.write(f"authorized/{name}.json", Authorized(roles, public))
        return PeerKeys(name, roles, public, secret, server.curve_public, server.tls_certificate)

    def _create_first(self) -> None:
        """Create all keys if there are none."""
        if self._has_keys():
            return
        try:
            disk.make_folder(self.path, mode=0o700)
            self._fill()
        except OSError as error:
            if not (self.path / "server.json").exists():
                raise CredentialsError(
                    f"cannot write keys to {self.path}: {error.strerror}; name another folder: "
                    "--server.keys_dir, or TMRL_LIKE_HOME for all that is kept"
                ) from None

    def _has_keys(self) -> bool:
        """Whether the folder has keys; a peer's key alone counts unless more are being made."""
        if (self.path / "server.json").exists():
            return True
        return (self.path / "peer.json").exists() and not (self.path / _UNFINISHED).exists()

    def _fill(self) -> None:
        """Create all keys in the folder, which may be a mount.

        Parts that start at the same time take turns. If one of them is killed before `server.json`
        is there, the next one starts over.
        """
        unfinished = self.path / _UNFINISHED
        names = {path.name for path in self.path.iterdir()}
        # asked last: another part that makes keys here has put it there before all else
        if names - {_LOCK, "lost+found"} and not unfinished.exists():
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        lock = lock_folder(self.path, _LOCKED_WITHIN_S, _LOCK)
        if lock is None:
            raise TimeoutError(errno.ETIMEDOUT, "another process keeps it locked")
        try:
            if self._has_keys():
                return
            if not unfinished.exists():
                disk.open(unfinished).close()
                disk.sync_folder(self.path)
            server = ServerKeys(*_curve_pair(), *tls_pair("default"))
            self.write("peer.json", self._authorize(server, _LOCAL, ROLES))
            self.write("server.json", server)
            disk.remove(unfinished)
        finally:
            lock.release()


class AuthorizedKeys:
    """The peers that may connect, held in memory. One thread refreshes, any thread may look up.

    A failed read changes nothing: the folder may be missing or being copied, a file half written,
    or no descriptor free. A key is dropped when two reads, at least `KEYS_CHECK_S` apart, have
    found the folder complete (`server.json` is there) but without the key's file. It is dropped at
    once if its file holds another key.
    """

    def __init__(self, folder: KeyFolder) -> None:
        self._folder = folder.path
        # by name: what was read from a file, and what told that it is this one
        self._known: dict[str, tuple[Authorized, _Stamp]] = {}
        self._absent_since: dict[str, float] = {}
        self._say = Lines(log, 1, 0.0)  # each line once
        self._looks = Bucket(burst=100, per_s=10)
        self.identities: Mapping[str, Identity] = {}
        """Maps a public key (Z85) to its identity; always replaced as a whole."""
        self.refresh()

    def identity_of(self, curve_public: str) -> Identity:
        """Return the identity of a key that was once valid, or `REVOKED` if it no longer is."""
        return self.identities.get(curve_public, REVOKED)

    def is_valid(self, name: str) -> bool:
        """Whether the key of this name may connect."""
        return name in self._known

    def find(self, curve_public: str) -> Identity | None:
        """Return the identity of this key, or None; if it is unknown, look for new files first.

        Call this in the thread that calls `refresh`.
        """
        if curve_public not in self.identities and self._looks.take(1, time.monotonic()):
            self.refresh()
        found = self.identities.get(curve_public)
        if found is None:
            line = (
                "refused a connection with an unknown key; `tmrl-like keys invite` makes a valid "
                "one"
            )
            self._say(line, logging.WARNING, line)
        return found

    def refresh(self, now: float | None = None) -> None:
        """Read the files that have changed. `now` is `time.monotonic()`, which None stands for."""
        now = time.monotonic() if now is None else now
        authorized = self._folder / "authorized"
        try:
            with os.scandir(authorized) as files:
                states = {}
                for file in files:
                    # of a file that was just removed, or an editor's link to nowhere
                    with contextlib.suppress(FileNotFoundError):
                        if file.name.endswith(".json"):
                            states[file.name[:-5]] = file.stat()
            is_whole = (self._folder / "server.json").exists()
        except OSError as error:
            line = "cannot read %s (%s): the keys known so far stay valid"
            self._say(str(error), logging.WARNING, line, authorized, error.strerror)
            return
        for name, state in states.items():
            stamp = (state.st_mtime_ns, state.st_ctime_ns, state.st_size)
            if name not in self._known or self._known[name][1] != stamp:
                self._read(name, stamp)
        if is_whole:
            self._drop_absent(self._known.keys() - states.keys(), now)
        self.identities = {
            entry.curve_public: Identity(name, entry.roles)
            for name, (entry, _) in sorted(self._known.items())
        }

    def _read(self, name: str, stamp: _Stamp) -> None:
        """Read a file. If that fails, keep the key that was in it, and try again next time."""
        try:
            file = self._folder / "authorized" / f"{name}.json"
            self._known[name] = read_keys(file, Authorized), stamp
        except CredentialsError as error:
            is_known = name in self._known
            follows = "the key that was in it stays valid" if is_known else "this key is refused"
            line = f"{error}; {follows}"
            self._say(line, logging.WARNING, line)

    def _drop_absent(self, absent: Set[str], now: float) -> None:
        self._absent_since = {name: self._absent_since.get(name, now) for name in absent}
        for name in absent:
            if now - self._absent_since[name] >= KEYS_CHECK_S:
                del self._known[name]


def _curve_pair() -> tuple[str, str]:
    import zmq

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def tls_pair(host: str) -> tuple[str, str]:
    """Return a P-256 key and its self-signed certificate for a host name, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    start = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)  # a clock that was never set
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=365 * 150))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private.decode(), certificate.public_bytes(pem).decode()


def _is_secret(kind: type[msgspec.Struct]) -> bool:
    """Whether files of this kind are readable by their owner only."""
    return kind is not Authorized


def read_keys(path: Path, kind: type[T]) -> T:
    """Return the content of a file of a key folder.

    Raises:
        CredentialsError: it cannot be read, is damaged, or is a secret that others can read.
    """
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from None
    if _is_secret(kind) and os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CredentialsError(f"{path} is a secret that others can read; run: chmod 600 {path}")
    try:
        return read_checked(content, kind)
    except ValueError as error:
        raise CredentialsError(
            f"{path} is damaged ({error}); restore it, or start over without the folder"
        ) from None
