"""Waiting for messages in tests: by polling with a deadline against hangs, never by sleeping for a
fixed time.
"""

import random

from kit.waiting import until


def receive_at(server):
    """Wait for the next message at the server, and return it."""
    return until(lambda: server.receive(0.2), "a message to the server")


def receive_of(peer):
    """Wait for the next message at a peer, which may be empty, and return it."""

    def received():
        message = peer.receive(0.2)
        return None if message is None else [bytes(message)]

    return until(received, "a message to the peer")[0]


def send_of(peer, data):
    """Send from a peer as soon as its link accepts the message."""
    until(lambda: peer.send(data), "a place for the peer's message")


def introduce(server, peer):
    """Exchange a message each way, whatever was lost or left over before; return the connection's
    id.
    """
    nonce = random.randbytes(8)

    def found():
        peer.send(b"introduction " + nonce)
        while (message := server.receive(0.05)) is not None:
            if bytes(message.data) == b"introduction " + nonce and server.send(message.peer, nonce):
                return message.peer
        return None

    connection = until(found, "that peer and server find each other")
    assert connection is not None
    # receive leftovers, up to a message known to be the last
    while receive_of(peer) != nonce:
        pass
    send_of(peer, nonce)
    while receive_at(server).data != nonce:
        pass
    return connection
