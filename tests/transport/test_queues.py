"""How much may wait for a peer that does not receive."""

from __future__ import annotations

from tmrl_like.transport import TransportOptions

from .conftest import Machines
from .exchange import introduce, receive_of, until

SMALL = 1 << 20
SYSTEM_BUFFERS = 32 << 20  # of TCP on both sides, generously


def test_what_waits_for_a_slow_peer_is_bounded_in_bytes(machines: Machines) -> None:
    options = TransportOptions(max_message_bytes=SMALL)
    server = machines.listen(options=options)
    peer = machines.connect(server, options=TransportOptions(max_message_bytes=SMALL, queue_messages=4))
    connection = introduce(server, peer)
    taken = 0
    while taken < options.queue_messages and server.send(connection, bytes(SMALL)):
        taken += 1
    assert options.queue_bytes // SMALL <= taken <= (options.queue_bytes + SYSTEM_BUFFERS) // SMALL
    for _ in range(taken):
        assert len(receive_of(peer)) == SMALL
    until(lambda: server.send(connection, bytes(SMALL)))
