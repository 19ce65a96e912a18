"""Which key a peer holds. All peers share tlspyo's password; this tells them apart.

Server and peer derive a shared secret from their CURVE keys (X25519). The server sends a random nonce
down the TLS connection, the peer answers with a keyed hash over nonce and both public keys. A nonce is
used once, on one connection, so an answer is of no use anywhere else; and only the server that holds the
TLS key can ask.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

NONCE_BYTES = 32
_PERSON = b"tmrl-like-proof1"


class Secret:
    """One side's secret key and public key (Z85 text)."""

    def __init__(self, curve_secret: str, curve_public: str) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._secret = X25519PrivateKey.from_private_bytes(_raw(curve_secret))
        self._public = curve_public

    def shared_with(self, curve_public: str) -> bytes:
        """The secret shared with the owner of another key.

        Raises:
            ValueError: no usable public key.
        """
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        return self._secret.exchange(X25519PublicKey.from_public_bytes(_raw(curve_public)))

    def prove_to(self, server_public: str, nonce: bytes) -> bytes:
        """A peer's answer to a nonce."""
        return _mac(self.shared_with(server_public), nonce, server_public, self._public)

    def verify(self, peer_public: str, nonce: bytes, mac: bytes) -> bool:
        """Whether the answer could only come from the holder of `peer_public`'s secret."""
        try:
            expected = _mac(self.shared_with(peer_public), nonce, self._public, peer_public)
        except ValueError:
            return False
        return hmac.compare_digest(expected, mac)


def _mac(shared: bytes, nonce: bytes, server_public: str, peer_public: str) -> bytes:
    told = nonce + _raw(server_public) + _raw(peer_public)
    return hashlib.blake2b(told, key=shared, person=_PERSON, digest_size=32).digest()


def _raw(key: str) -> bytes:
    from zmq.utils import z85

    if len(key) != 40 or not key.isascii():
        raise ValueError("a key is 40 characters of Z85")
    try:
        raw = z85.decode(key)
    except (KeyError, struct.error):
        raise ValueError("a key is 40 characters of Z85") from None
    if len(raw) != 32:
        raise ValueError("a key is 32 bytes")
    return raw
