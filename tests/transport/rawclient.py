"""A peer of the tlspyo transport made of plain sockets, with which tests can misbehave in any
way.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

import msgspec

from tmrl_like.transport.over_tlspyo import GROUP, password_of


def trust_all():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class RawPeer:
    """A peer that connects at once, and sends only what the test tells it to."""

    def __init__(self, service):
        keys = service.keys.peer_keys()
        self.password = password_of(keys.curve_public, keys.server_curve_public, keys.curve_secret)
        self._socket = trust_all().wrap_socket(
            socket.create_connection(service.server.address, timeout=10)
        )
        self._stamp = 0
        self._buffer = b""

    def write(self, data):
        with contextlib.suppress(OSError):
            self._socket.sendall(data)

    def say(self, cmd, dest=None, obj=None):
        self._stamp += 1
        self.say_bytes(msgspec.msgpack.encode((self._stamp, cmd, dest, obj)))

    def say_bytes(self, envelope):
        self.write(f"{len(envelope):<10}{self.password}".encode() + envelope)

    def hear(self):
        """Return the next command received."""
        while len(self._buffer) < 10 or len(self._buffer) < 10 + int(self._buffer[:10]):
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self._buffer += data
        end = 10 + int(self._buffer[:10])
        envelope, self._buffer = self._buffer[10:end], self._buffer[end:]
        return msgspec.msgpack.decode(envelope)[1]

    def join(self):
        self.say("HELLO", None, [GROUP])
        while self.hear() != "ACK":
            pass
        return self

    def closed(self, deadline_s=60.0):
        """Whether the server closes the connection in time."""
        return closes(self._socket, deadline_s)

    def close(self):
        self._socket.close()


def closes(sock, deadline_s=60.0):
    """Whether the other side closes `sock` in time, whatever it sends before."""
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
