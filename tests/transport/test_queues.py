"""Limits on data that waits for a peer that does not receive."""

from dataclasses import replace

import pytest
from kit.pythons import python

from tmrl_like.transport import TransportOptions

from .exchange import introduce, receive_of, until

SMALL = 1 << 20
SYSTEM_BUFFERS = 32 << 20  # a generous bound for TCP's buffers on both sides


def test_what_waits_for_a_slow_peer_is_bounded_in_bytes(machines):
    options = TransportOptions(max_message_bytes=SMALL)
    server = machines.listen(options=options)
    peer = machines.connect(server, options=replace(options, queue_messages=4))
    connection = introduce(server, peer)
    taken = 0
    while server.send(connection, bytes(SMALL)):
        taken += 1
        assert taken <= (options.queue_bytes + SYSTEM_BUFFERS) // SMALL
    assert taken >= options.queue_bytes // SMALL
    for _ in range(taken):
        assert len(receive_of(peer)) == SMALL
    until(lambda: server.send(connection, bytes(SMALL)))


_FULL = """
import sys, time
from pathlib import Path
from tmrl_like.transport import KeyFolder, TransportOptions, connect, listen

keys = KeyFolder(Path(sys.argv[1]))
few = TransportOptions(queue_messages=10, heartbeat_s=0.1, silent_after_s=0.5)
server = listen("zmq", "127.0.0.1", 0, keys, few)
port = server.address[1]
peer = connect("zmq", "127.0.0.1", port, keys, few)
while not (found := server.receive(0.05)):
    peer.send(b"here")
    peer.receive(0.0)
idle_since = time.monotonic()
# until both queues, and what lies between them, are full
while time.monotonic() < idle_since + 0.5:
    if server.send(found.peer, bytes(100_000)):
        idle_since = time.monotonic()
if sys.argv[2] == "ends":
    server.close()
    server = listen("zmq", "127.0.0.1", port, keys, few)
time.sleep(1.5)
while peer.receive(0.2):
    pass
while not (found := server.receive(0.05)):
    peer.send(b"still here")
    peer.receive(0.0)
peer.close()
server.close()
"""


_FULL_SERVER = """
import sys, time
from pathlib import Path
from tmrl_like.transport import KeyFolder, TransportOptions, connect, listen

keys = KeyFolder(Path(sys.argv[1]))
few = TransportOptions(queue_messages=10, heartbeat_s=0.1)
server = listen("zmq", "127.0.0.1", 0, keys, few)
peer = connect("zmq", "127.0.0.1", server.address[1], keys, few)
while not server.receive(0.05):
    peer.send(b"here")
    peer.receive(0.0)
idle_since = time.monotonic()
while time.monotonic() < idle_since + 0.5:
    if peer.send(bytes(100_000)):
        idle_since = time.monotonic()
peer.close()
time.sleep(0.5)
while server.receive(0.2):
    pass
server.close()
"""


@pytest.mark.parametrize(
    ("script", "server"), [(_FULL, "ends"), (_FULL, "waits"), (_FULL_SERVER, "")]
)
def test_a_queue_that_is_full_outlives_its_connection(tmp_path, script, server):
    """Otherwise libzmq would abort the process; see `transport.zmq`."""
    python("-c", script, tmp_path / "keys", server)
