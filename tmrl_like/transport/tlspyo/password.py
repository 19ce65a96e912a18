"""A password for each key: what tlspyo asks every envelope for.

It is the peer's public key and a keyed hash over both public keys, under the secret that server and peer derive from
their CURVE keys (X25519). Nobody else can compute it, and it travels over TLS to the server alone, whose certificate
the peer has checked by then.
"""

from __future__ import annotations

import hashlib

KEY_CHARACTERS = 40
PASSWORD_BYTES = KEY_CHARACTERS + 64
_PERSON = b"tmrl-like-proof2"


def password_of(peer_public: str, server_public: str, own_secret: str) -> str:
    """Return the password of a peer; `own_secret` is that of the peer or of the server. Keys are Z85 text."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from zmq.utils import z85

    secret = X25519PrivateKey.from_private_bytes(z85.decode(own_secret))
    server, peer = z85.decode(server_public), z85.decode(peer_public)
    other = peer if secret.public_key().public_bytes_raw() == server else server
    shared = secret.exchange(X25519PublicKey.from_public_bytes(other))
    return peer_public + hashlib.blake2b(server + peer, key=shared, person=_PERSON, digest_size=32).hexdigest()
