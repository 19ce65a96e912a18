"""What every transport guarantees, one test each; the same tests for all of them."""

import random
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import pytest

from tmrl_like.errors import AddressInUseError, OversizeError
from tmrl_like.transport import Identity, KeyFolder, TransportOptions, connect, listen

from .exchange import DEADLINE_S, introduce, receive_at, receive_of, send_of, until


class Contract:
    transport: ClassVar[str]
    identity = Identity("local", ("worker", "trainer"))

    @pytest.fixture(autouse=True)
    def keys(self, tmp_path_factory):
        self.folder = KeyFolder(Path(tmp_path_factory.mktemp("machine")) / "keys")

    def listen(self, port=0, options=None):
        return listen(self.transport, "127.0.0.1", port, self.folder, options)

    def connect(self, address, options=None):
        return connect(self.transport, *address, self.folder, options)

    @contextmanager
    def server(self, port=0, options=None):
        """A server that is closed at the end."""
        with closing(self.listen(port, options)) as server:
            yield server

    @contextmanager
    def pair(self, options=None):
        """A server, a peer whose connection works both ways, and that connection's id."""
        with self.server(0, options) as server, closing(self.connect(server.address, options)) as peer:
            yield server, peer, introduce(server, peer)

    def test_messages_of_all_sizes_arrive_unchanged_both_ways(self):
        with self.pair() as (server, peer, connection):
            for size in (0, 1, 255 * 1024, 300_000, 5_000_000):
                data = random.Random(size).randbytes(size)
                send_of(peer, data)
                assert bytes(receive_at(server).data) == data
                until(lambda data=data: server.send(connection, data))
                assert receive_of(peer) == data

    def test_messages_keep_their_order_both_ways(self):
        messages = [i.to_bytes(4, "big") * (1 + i % 50) for i in range(200)] + [b"end" * 200_000]
        with self.pair() as (server, peer, connection):
            for message in messages:
                send_of(peer, message)
            assert [bytes(receive_at(server).data) for _ in messages] == messages
            for message in messages:
                until(lambda message=message: server.send(connection, message))
            assert [receive_of(peer) for _ in messages] == messages

    def test_many_peers_are_told_apart(self):
        with ExitStack() as stack:
            server = stack.enter_context(self.server())
            peers = [stack.enter_context(closing(self.connect(server.address))) for _ in range(4)]
            for i, peer in enumerate(peers):
                send_of(peer, bytes([i]))
            arrived = [receive_at(server) for _ in peers]
            assert len({message.peer for message in arrived}) == len(peers)
            assert {bytes(message.data) for message in arrived} == {bytes([i]) for i in range(len(peers))}
            for message in arrived:
                assert server.send(message.peer, b"for " + message.data)
            assert [receive_of(peer) for peer in peers] == [b"for " + bytes([i]) for i in range(len(peers))]

    def test_the_server_knows_who_speaks(self):
        with self.server() as server, closing(self.connect(server.address)) as peer:
            send_of(peer, b"hello")
            assert receive_at(server).identity == self.identity

    def test_receive_waits_as_long_as_asked(self):
        with self.pair() as (server, peer, _):
            for receive in (server.receive, peer.receive):
                for timeout_s in (0.0, 0.2):
                    start = time.monotonic()
                    assert receive(timeout_s) is None
                    assert timeout_s - 0.05 <= time.monotonic() - start < DEADLINE_S / 2

    def test_wake_ends_a_waiting_receive(self):
        with self.pair() as (server, peer, _):
            for link in (server, peer):
                waker = threading.Timer(0.1, link.wake)
                waker.start()
                start = time.monotonic()
                assert link.receive(DEADLINE_S) is None
                assert time.monotonic() - start < DEADLINE_S / 2
                waker.join()

    def test_a_message_to_nobody_is_not_taken(self):
        with self.pair() as (server, peer, connection):
            assert not server.send(b"\x00never-heard-of", b"data")
            peer.close()
            until(lambda: not server.send(connection, b"data"), "the server's `send` saying no")

    def test_a_forgotten_peer_that_speaks_again_is_answered(self):
        with self.pair() as (server, peer, connection):
            server.forget(connection)
            send_of(peer, b"still here")
            assert server.send(receive_at(server).peer, b"good")
            assert receive_of(peer) == b"good"

    def test_a_full_queue_says_no_and_loses_nothing_that_it_took(self):
        options = TransportOptions(queue_messages=10)
        body = bytes(200_000)  # large, so that the system's own buffers are full soon
        with self.pair(options) as (server, peer, connection):
            taken = 0
            while taken < 2000 and peer.send(taken.to_bytes(4, "big") + body):
                taken += 1
            assert taken < 2000
            for i in range(taken):
                assert bytes(receive_at(server).data[:4]) == i.to_bytes(4, "big")
            taken = 0
            while taken < 2000 and server.send(connection, taken.to_bytes(4, "big") + body):
                taken += 1
            assert taken < 2000
            for i in range(taken):
                assert receive_of(peer)[:4] == i.to_bytes(4, "big")

    def test_a_message_above_the_limit_is_refused_by_the_sender(self):
        options = TransportOptions(max_message_bytes=1000)
        with self.pair(options) as (server, peer, connection):
            with pytest.raises(OversizeError):
                peer.send(bytes(1001))
            with pytest.raises(OversizeError):
                server.send(connection, bytes(1001))
            send_of(peer, bytes(1000))
            assert len(receive_at(server).data) == 1000

    def test_a_message_above_the_limit_is_refused_by_the_receiver(self):
        small, large = TransportOptions(max_message_bytes=100_000), TransportOptions()
        with (
            self.server(0, small) as server,
            closing(self.connect(server.address, large)) as rude,
            closing(self.connect(server.address, small)) as polite,
        ):
            connection = introduce(server, polite)
            introduce(server, rude)
            with suppress(OversizeError):
                rude.send(bytes(1_000_000))
            send_of(polite, b"polite")
            assert bytes(receive_at(server).data) == b"polite"
            assert server.send(connection, b"well")
            assert receive_of(polite) == b"well"
            assert server.receive(0.3) is None

    def test_a_peer_may_be_there_before_its_server(self):
        with self.server() as server:
            address = server.address
        with closing(self.connect(address)) as peer:
            assert peer.receive(0.3) is None
            with self.server(address[1]) as server:
                introduce(server, peer)

    def test_peers_come_back_to_a_restarted_server(self):
        with ExitStack() as stack:
            server = self.listen()
            peers = [stack.enter_context(closing(self.connect(server.address))) for _ in range(2)]
            for peer in peers:
                introduce(server, peer)
            server.close()
            server = stack.enter_context(self.server(server.address[1]))
            for peer in peers:
                introduce(server, peer)

    def test_closing_twice_is_fine_and_frees_the_port_at_once(self):
        server = self.listen()
        peer = self.connect(server.address)
        introduce(server, peer)
        for link in (peer, server, peer, server):
            link.close()
        with self.server(server.address[1]) as successor:
            assert successor.address == server.address

    def test_a_taken_port_is_named(self):
        with self.server() as server, pytest.raises(AddressInUseError, match=str(server.address[1])):
            self.listen(server.address[1]).close()


class TestZmq(Contract):
    transport = "zmq"


class TestTlspyo(Contract):
    transport = "tlspyo"


class TestInproc(Contract):
    transport = "inproc"
    identity = Identity("inproc", ("worker", "trainer"))
