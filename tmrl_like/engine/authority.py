"""Who may use an engine: its authority, and the users that it signs.

The machine where `tmrl-like engine init` ran holds the authority, in its key folder::

    keys/
      engine.json              secret: the keys that sign (operator, account, system account, certificates)
      engine_users/NAME.json   per user: its role and public key
      engine_revoked.json      the users that were revoked, and when

and other machines what an invitation's line gave them::

      engine_site.json         secret: this machine's signed user as a site; engine_trainer.json: as a trainer
      engine_node.json         secret: a node's certificate and key, and the public parts of the authority

A user's rights are in its JWT, which the account signs. The brokers hold public keys only, so that inviting changes
none of them; a revocation is another JWT of the account, pushed to all.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import json
import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tmrl_like.engine.options import DEFAULT_PORT, address_of
from tmrl_like.engine.subjects import rights
from tmrl_like.errors import CredentialsError, MissingExtraError
from tmrl_like.transport.credentials import KeyFolder, check_name, read_keys

if TYPE_CHECKING:
    from nkeys import KeyPair

LOCAL = "local"
_AUTHORITY, _REVOKED, _USERS = "engine.json", "engine_revoked.json", "engine_users"
_USER, _NODE = "engine_{}.json", "engine_node.json"
_UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
_ACCOUNT = {**_UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
_STORAGE = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class Node(msgspec.Struct, frozen=True):
    """What a node's configuration is made of; nothing in it can sign."""

    name: str
    nodes: tuple[str, ...]
    tls_key: str
    tls_certificate: str
    ca_certificate: str
    operator_jwt: str
    account: str  # public keys of the account and of the brokers' own
    system: str
    account_jwt: str
    system_jwt: str


class Leaf(msgspec.Struct, frozen=True):
    """What a site's own node is made of."""

    node: Node  # named after the site; its certificate is for this machine and for a host of that name
    credentials: str  # who it is to the engine's nodes: JWT and seed, as nats-server reads them


class EngineUser(msgspec.Struct, frozen=True):
    """Who this machine is to an engine, and how it knows the brokers."""

    name: str
    role: str
    jwt: str
    seed: str
    ca_certificate: str  # PEM: what signs the brokers' certificates
    nodes: tuple[str, ...]  # host or host:port of each
    leaf: Leaf | None = None  # a site's

    def sign(self, nonce: str) -> bytes:
        """The answer to a broker's challenge, in base64."""
        return base64.b64encode(_nkeys().from_seed(self.seed.encode()).sign(nonce.encode()))


class EngineRecord(msgspec.Struct, frozen=True):
    """What the authority keeps of a user: nothing secret."""

    role: str
    public_key: str


_FOR_GOOD = 1 << 40  # Unix seconds: each user has a key of its own, and the clock may be set back after it was signed


class Revoked(msgspec.Struct, frozen=True):
    """A user whose JWTs count no more; `at`: of the account's JWT that says so first, in Unix seconds."""

    name: str
    public_key: str
    at: int


class _Revocations(msgspec.Struct, frozen=True):
    users: list[Revoked]


class _Secrets(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]
    made_at: int
    operator_seed: str
    account_seed: str
    system_seed: str
    ca_key: str
    ca_certificate: str


class Authority:
    """The keys that sign, in this machine's key folder."""

    def __init__(self, keys: KeyFolder) -> None:
        """Read them.

        Raises:
            CredentialsError: they are not here, damaged, or readable by others.
            MissingExtraError: the extra `engine` is not installed.
        """
        if not is_authority(keys):
            raise CredentialsError(
                f"{keys.path} holds no engine: run this where it was made, or make one with: "
                "tmrl-like engine init --nodes HOST"
            )
        self._keys = keys
        self._secrets = read_keys(keys.path / _AUTHORITY, _Secrets, secret=True)
        self._operator, self._account, self._system = (
            _pair_of(seed, keys)
            for seed in (self._secrets.operator_seed, self._secrets.account_seed, self._secrets.system_seed)
        )
        self.nodes = self._secrets.nodes
        self.account = self._account.public_key.decode()

    @classmethod
    def create(cls, keys: KeyFolder, nodes: tuple[str, ...]) -> Authority:
        """Make one, for brokers of these names (host or host:port).

        Raises:
            CredentialsError: there is one already, this machine joined another's, or the folder cannot be written.
        """
        if found := next(keys.path.glob("engine*.json"), None):
            raise CredentialsError(
                f"{found} is there already: take another key folder (--keys-dir), or remove it, and whoever was "
                "invited by it must be invited again"
            )
        keys.server_keys()  # its gateways' pair, too
        operator = _pair(_nkeys().PREFIX_BYTE_OPERATOR).seed.decode()
        account, system = (_pair(_nkeys().PREFIX_BYTE_ACCOUNT).seed.decode() for _ in range(2))
        made = _Secrets(nodes, int(time.time()), operator, account, system, *_ca())
        keys.write(_AUTHORITY, made, private=True)
        return cls(keys)

    def users(self) -> dict[str, EngineRecord]:
        """The users that were invited, by name."""
        files = sorted((self._keys.path / _USERS).glob("*.json"))
        return {file.stem: read_keys(file, EngineRecord, secret=False) for file in files}

    def names(self) -> set[str]:
        """Of all users that ever were invited: those that were revoked since, too."""
        return {*self.users(), *(user.name for user in self._revoked())}

    def local_user(self, role: str) -> EngineUser:
        """A user of a part on this machine, signed now."""
        return self._sign(LOCAL, role, _pair(_nkeys().PREFIX_BYTE_USER))

    def invite_user(self, name: str, role: str) -> EngineUser:
        """Sign a user, and write down that it exists.

        Raises:
            CredentialsError: the name is taken or not usable.
        """
        check_name(name)
        file = self._keys.path / _USERS / f"{name}.json"
        if name.lower() in {address_of(node)[0].lower() for node in self.nodes}:
            raise CredentialsError(f"{name!r} is a node of this engine; take another name")
        if file.exists() or name == LOCAL:
            raise CredentialsError(f"there is a key named {name!r} already; revoke it first or take another name")
        pair = _pair(_nkeys().PREFIX_BYTE_USER)
        self._keys.write(f"{_USERS}/{name}.json", EngineRecord(role, pair.public_key.decode()))
        return self._sign(name, role, pair)

    def node(self, name: str) -> Node:
        """What a node on this machine needs, with a certificate signed now.

        Raises:
            CredentialsError: the engine has no node of that name.
        """
        if name not in self.nodes:
            raise CredentialsError(f"this engine has no node {name!r}; its nodes are {', '.join(self.nodes)}")
        return self._node(name, address_of(name)[0], in_cluster=True)

    def _node(self, name: str, host: str, in_cluster: bool) -> Node:
        key, certificate = _certificate(host, self._secrets.ca_key, self._secrets.ca_certificate, in_cluster)
        system = self._system.public_key.decode()
        issuer, made_at = self._operator, self._secrets.made_at
        claims = {"type": "operator", "system_account": system}
        operator = _jwt(issuer, issuer.public_key.decode(), "tmrl_like", claims, made_at)
        system_jwt = _jwt(issuer, system, "system", {"type": "account", "limits": _ACCOUNT}, made_at)
        certificates = (key, certificate, self._secrets.ca_certificate)
        return Node(name, self.nodes, *certificates, operator, self.account, system, self.account_jwt(), system_jwt)

    def account_jwt(self) -> str:
        """What the brokers need to know whom the account has signed: its key, and who was revoked.

        The same content is the same JWT; a later revocation has a later time, so that brokers keep the newest.
        """
        revoked = self._revoked()
        until = dict.fromkeys((user.public_key for user in revoked), _FOR_GOOD)
        claims = {"type": "account", "limits": {**_ACCOUNT, **_STORAGE}, "revocations": until}
        return _jwt(self._operator, self.account, "tmrl_like", claims, self._newest(revoked))

    def revoke(self, name: str) -> None:
        """Revoke what was signed for one of `names`; `account_jwt` says so from then on. Twice is fine."""
        revoked, known = self._revoked(), self.users()
        if name in known:
            at = max(int(time.time()), self._newest(revoked) + 1)
            revoked.append(Revoked(name, known[name].public_key, at))
            self._keys.write(_REVOKED, _Revocations(revoked))
            (self._keys.path / _USERS / f"{name}.json").unlink()

    def system_user(self) -> EngineUser:
        """Who may tell the brokers about a revocation, signed now by the brokers' own account."""
        return self._sign(LOCAL, "system", _pair(_nkeys().PREFIX_BYTE_USER), self._system)

    def _sign(self, name: str, role: str, pair: KeyPair, account: KeyPair | None = None) -> EngineUser:
        seed, jwt = pair.seed.decode(), _user_jwt(account or self._account, name, role, pair)
        leaf = None
        if role == "site":  # a revocation is of the key, so of both JWTs
            parts = {"NATS USER JWT": _user_jwt(self._account, name, "leaf", pair), "USER NKEY SEED": seed}
            text = "".join(
                f"-----BEGIN {part}-----\n{value}\n------END {part}------\n" for part, value in parts.items()
            )
            leaf = Leaf(self._node(name, name, in_cluster=False), text)
        return EngineUser(name, role, jwt, seed, self._secrets.ca_certificate, self.nodes, leaf)

    def _revoked(self) -> list[Revoked]:
        file = self._keys.path / _REVOKED
        return read_keys(file, _Revocations, secret=False).users if file.exists() else []

    def _newest(self, revoked: list[Revoked]) -> int:
        return max(self._secrets.made_at, *(user.at for user in revoked), 0)


def is_authority(keys: KeyFolder) -> bool:
    """Whether an engine's authority lives in this folder."""
    return (keys.path / _AUTHORITY).exists()


def engine_user(keys: KeyFolder, role: str) -> EngineUser:
    """Who this machine is to its engine, in that role; where the authority is, a user named "local", signed now.

    Raises:
        CredentialsError: it is nobody; or the file is damaged or readable by others.
        MissingExtraError: the extra `engine` is not installed.
    """
    if is_authority(keys):
        return Authority(keys).local_user(role)
    file = keys.path / _USER.format(role)
    if not file.exists():
        raise CredentialsError(
            f"{keys.path} holds no {role} of an engine: run `tmrl-like keys invite NAME --role {role}` where the "
            "engine was made, and here: tmrl-like keys join -"
        )
    return read_keys(file, EngineUser, secret=True)


def engine_node(keys: KeyFolder, name: str) -> Node:
    """What the node of that name is configured with, on this machine.

    Raises:
        CredentialsError: it is no node of the engine's, or the file is damaged or readable by others.
        MissingExtraError: the extra `engine` is not installed.
    """
    if is_authority(keys):
        return Authority(keys).node(name)
    how = f"run `tmrl-like keys invite {name} --role node` where the engine was made, and here: tmrl-like keys join -"
    if not (keys.path / _NODE).exists():
        raise CredentialsError(f"{keys.path} holds no engine's node: make one with `tmrl-like engine init`, or {how}")
    node = read_keys(keys.path / _NODE, Node, secret=True)
    if node.name != name:
        raise CredentialsError(f"{keys.path} holds the node {node.name}, not {name}; {how}")
    return node


def store_user(keys: KeyFolder, user: EngineUser) -> None:
    """Keep an invitation's user as this machine's."""
    keys.write(_USER.format(user.role), user, private=True)


def store_node(keys: KeyFolder, node: Node) -> None:
    """Keep an invitation's node as this machine's."""
    keys.write(_NODE, node, private=True)


def node_name(text: str) -> str:
    """What a node is called: its host, with a port where that is not the usual one.

    Raises:
        ConfigError: that is not the address of one.
    """
    host, port = address_of(text)
    return host if port == DEFAULT_PORT else f"{host}:{port}"


def _nkeys() -> Any:
    try:
        import nkeys
    except ImportError:
        raise MissingExtraError("an engine needs more packages: pip install 'tmrl_like[engine]'") from None
    return nkeys


def _pair(prefix: int) -> KeyPair:
    return _nkeys().from_seed(_nkeys().encode_seed(secrets.token_bytes(32), prefix))


def _pair_of(seed: str, keys: KeyFolder) -> KeyPair:
    try:
        return _nkeys().from_seed(seed.encode())
    except _nkeys().NkeysError:
        raise CredentialsError(f"{keys.path / _AUTHORITY} is damaged; restore it, or make another engine") from None


def _user_jwt(account: KeyPair, name: str, role: str, pair: KeyPair) -> str:
    allowed = rights(role, name)
    claims = {
        "type": "user",
        **_UNLIMITED,
        "pub": {"allow": list(allowed.publish)},
        "sub": {"allow": list(allowed.hear)},
        "allowed_connection_types": list(allowed.connections),
    }
    return _jwt(account, pair.public_key.decode(), name, claims, int(time.time()))


def _jwt(issuer: KeyPair, subject: str, name: str, claims: Mapping[str, Any], issued_at: int) -> str:
    """A JWT as NATS reads it: https://docs.nats.io/running-a-nats-service/nats_admin/security/jwt."""
    head = _base64(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = {"iat": issued_at, "iss": issuer.public_key.decode(), "name": name, "sub": subject}
    body["nats"] = {**claims, "version": 2}
    body["jti"] = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    signed = f"{head}.{_base64(json.dumps(body).encode())}"
    return f"{signed}.{_base64(issuer.sign(signed.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _ca() -> tuple[str, str]:
    """A P-256 key and its certificate, which signs others, in PEM."""
    from cryptography import x509

    return _signed("tmrl_like engine", x509.BasicConstraints(ca=True, path_length=0))


def _certificate(host: str, ca_key: str, ca_certificate: str, is_client: bool) -> tuple[str, str]:
    """A P-256 key and a certificate of it for this host and for this machine's own name, in PEM.

    `is_client`: who dials may show it, too. That is how a node is let in by the others, so no site's certificate may.
    """
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    names: list[x509.GeneralName] = []
    for name in dict.fromkeys((host, "localhost", "127.0.0.1", "::1")):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            names.append(x509.DNSName(name))
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, *([ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else [])]
    extensions = (x509.SubjectAlternativeName(names), x509.ExtendedKeyUsage(usages))
    leaf = x509.BasicConstraints(ca=False, path_length=None)
    return _signed(host[:64], leaf, *extensions, ca=(ca_key, ca_certificate))


def _signed(name: str, *extensions: Any, ca: tuple[str, str] | None = None) -> tuple[str, str]:
    """A key and its certificate, signed by `ca` or by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    signer: Any = key
    if ca is not None:
        signer = serialization.load_pem_private_key(ca[0].encode(), None)
        issuer = x509.load_pem_x509_certificate(ca[1].encode()).subject
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=365 * 100))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    certificate = builder.sign(signer, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private.decode(), certificate.public_bytes(pem).decode()
