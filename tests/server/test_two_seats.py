"""A worker that has left a server which still believes in it: a seat at two servers, and one trainer behind both."""

import random

import numpy as np
import pytest

from tmrl_like.delivery.log import PacketLog, lock_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sender import Sender
from tmrl_like.server.relay import Relay
from tmrl_like.transport.base import Identity, Incoming
from tmrl_like.types import Receipt, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter
from tmrl_like.wire.records import packet_pieces

LOCAL = Identity("local", ("worker", "trainer"))


class Gateway:
    """A relay whose messages wait until somebody takes them."""

    address = ("fake", 1)

    def __init__(self) -> None:
        self.relay = Relay(self)
        self.to: dict[bytes, list[bytes]] = {}
        self.hear(b"engine", m.encode(m.Hello("trainer", "engine", 1, "0")))

    def hear(self, peer: bytes, data: bytes) -> bool:
        self.relay.handle(Incoming(peer, LOCAL, data), 0.0)
        return True

    def send(self, peer: bytes, data: bytes) -> bool:
        self.to.setdefault(peer, []).append(bytes(data))
        return True

    def forget(self, peer: bytes) -> None:
        pass


def packet_of(sequence: int) -> tuple[bytes, ...]:
    writer = PacketWriter()
    writer.append((np.array([sequence]), np.zeros(1), 0.0, False, False, {}), StepTiming(1e9, 0.0, 0.0, 1))
    return packet_pieces(Receipt("w", 1, sequence), 0, writer.rows(), (), Compressor())


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_moves_to_and_fro_loses_and_doubles_nothing(seed, tmp_path):
    rng, now, produced, visit = random.Random(seed), 0.0, 0, 0
    gateways, receiver, taken = [Gateway(), Gateway()], Receiver(), []
    log = PacketLog(tmp_path, lock_folder(tmp_path))
    sender = Sender("w", 1, OutboxOptions(), log, now)
    hello = m.encode(m.Hello("worker", "w", 1, "0"))
    gateways[0].hear(b"0", hello)
    for step in range(400):
        now += 0.1
        if step < 300 and rng.random() < 0.5:
            produced += 1
            sender.add(produced, 1, packet_of(produced), now)
        if step == 300 or (step < 300 and rng.random() < 0.1):  # its server seems to be away; packets wait there
            visit += 1
            gateways[visit % 2].hear(b"%d" % visit, hello)
            sender.retransmit(from_the_start=True)
        at, peer = gateways[visit % 2], b"%d" % visit
        sender.send(lambda data, at=at, peer=peer: at.hear(peer, data), now)
        for gateway in rng.sample(gateways, 2):
            waiting = gateway.to.setdefault(b"engine", [])
            while waiting and (step > 300 or rng.random() < 0.6):
                message, body = m.decode(waiting.pop(0))
                if isinstance(message, m.Bundle):
                    taken += receiver.take(message, body, now, lambda packet: True)
        receiver.confirm([delivery.receipt for delivery in taken])
        receiver.write(now)
        for ack in receiver.due():
            for gateway in gateways:
                gateway.hear(b"engine", m.encode(ack))
        for data in at.to.pop(peer, ()):
            message, _ = m.decode(data)
            if isinstance(message, m.Ack) and rng.random() < 0.7:
                sender.on_ack(message, now)
    values = [int(sample.act[0]) for delivery in taken for sample in delivery.buffer]
    assert values == [*range(1, produced + 1)]
    assert receiver.receipts[0].sequence == produced
    log.close()
