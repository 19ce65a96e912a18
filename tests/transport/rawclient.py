"""A peer of the tlspyo transport made of plain sockets, with which tests can misbehave in any
way.
"""

import contextlib
import socket
import ssl

import msgspec
from kit.waiting import until

from tmrl_like.transport.over_tlspyo import GROUP, password_of


class RawPeer:
    """A peer that connects at once, and sends only what the test tells it to."""

    def __init__(self, service):
        keys = service.keys.peer_keys()
        self.password = password_of(keys.curve_public, keys.server_curve_public, keys.curve_secret)
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        self._socket = trusting.wrap_socket(
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

    def closed(self):
        """Wait until the server closes the connection."""
        return closes(self._socket)

    def close(self):
        self._socket.close()


def closes(sock, within_s=60.0):
    """Wait until the other side closes `sock`, whatever it sends before."""
    sock.settimeout(0.2)

    def is_closed():
        try:
            return not sock.recv(65536)
        except TimeoutError:
            return False
        except OSError:
            return True

    return until(is_closed, "the end of the connection", within_s)
