"""A peer of the tlspyo transport made of plain sockets, so that tests can misbehave in every way."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import Any

import msgspec

from tmrl_like.transport.tlspyo import envelopes
from tmrl_like.transport.tlspyo.proof import Secret

from .conftest import Service


def trust_all() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class RawPeer:
    """Connects at once; says only what it is told to say."""

    def __init__(self, service: Service) -> None:
        self.keys = service.keys.peer_keys()
        self._socket = trust_all().wrap_socket(socket.create_connection(service.server.address, timeout=10))
        self._stamp = 0
        self._buffer = b""

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def say(self, cmd: Any, dest: Any = None, obj: Any = None, password: str | None = None) -> None:
        self._stamp += 1
        self.say_bytes(msgspec.msgpack.encode((self._stamp, cmd, dest, obj)), password)

    def say_bytes(self, envelope: bytes, password: str | None = None) -> None:
        header = f"{len(envelope):<10}".encode()
        self.write(header + (self.keys.password if password is None else password).encode() + envelope)

    def hear(self) -> tuple[int, str, bytes | None]:
        while True:
            if len(self._buffer) >= 10 and len(self._buffer) >= 10 + int(self._buffer[:10]):
                end = 10 + int(self._buffer[:10])
                envelope, self._buffer = self._buffer[10:end], self._buffer[end:]
                heard: tuple[int, str, bytes | None] = msgspec.msgpack.decode(envelope)
                return heard
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._buffer += data

    def hear_object(self) -> Any:
        while True:
            _, cmd, obj = self.hear()
            if cmd == "OBJ":
                assert obj is not None
                return envelopes.said_by_server(obj)

    def knock(self, groups: tuple[str, ...] = envelopes.PEER_GROUPS) -> bytes:
        """Say hello; returns the challenge."""
        self.say("HELLO", None, groups)
        challenge = self.hear_object()
        assert isinstance(challenge, envelopes.Challenge)
        return challenge.nonce

    def proof(self, nonce: bytes) -> bytes:
        secret = Secret(self.keys.curve_secret, self.keys.curve_public)
        mac = secret.prove_to(self.keys.server_curve_public, nonce)
        return envelopes.serialize(envelopes.Proof(self.keys.curve_public, mac))

    def join(self) -> RawPeer:
        self.say("OBJ", envelopes.TO_SERVER, self.proof(self.knock()))
        assert isinstance(self.hear_object(), envelopes.Accepted)
        return self

    def closed(self, deadline_s: float = 60.0) -> bool:
        """Whether the server closes the connection in time."""
        return closes(self._socket, deadline_s)

    def close(self) -> None:
        self._socket.close()


def closes(sock: socket.socket, deadline_s: float = 60.0) -> bool:
    """Whether the other side closes `sock` in time, whatever it says before."""
    deadline = time.monotonic() + deadline_s
    sock.settimeout(0.2)
    while time.monotonic() < deadline:
        try:
            if not sock.recv(65536):
                return True
        except TimeoutError:
            pass
        except OSError:
            return True
    return False
