"""A worker that has left a server which still believes in it: a seat at two servers, and one trainer behind both."""

import random

import pytest
from kit.clocks import Clock
from kit.packets import TIMING, numbered
from relay_kit import BOTH, hello

from tmrl_like.base.files import lock_folder
from tmrl_like.delivery.folder import open_folder
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.delivery.outbox import Outbox
from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_log import SampleLog
from tmrl_like.delivery.sample_store import SampleStore
from tmrl_like.server.relay import Relay
from tmrl_like.transport.base import Incoming
from tmrl_like.wire import messages as m


class Gateway:
    """A relay whose messages wait until somebody takes them."""

    address = ("fake", 1)

    def __init__(self):
        self.relay = Relay(self)
        self.to = {}
        self.hear(b"engine", m.encode(hello("trainer", "engine")))

    def hear(self, peer, data):
        self.relay.handle(Incoming(peer, BOTH, data), 0.0)
        return True

    def send(self, peer, data):
        self.to.setdefault(peer, []).append(bytes(data))
        return True

    def forget(self, peer):
        pass


@pytest.mark.parametrize("seed", range(20))
def test_a_worker_that_moves_to_and_fro_loses_and_doubles_nothing(seed, tmp_path):
    rng, clock, produced, visit = random.Random(seed), Clock(), 0, 0
    gateways, taken = [Gateway(), Gateway()], []
    store = SampleStore(tmp_path, lock_folder(tmp_path))
    receiver = Receiver(store)
    folder = open_folder(None, "w1")
    log = SampleLog(folder, incarnation=1)
    outbox = Outbox(folder.path, "w1", [1], OutboxOptions(max_age_s=0.0), clock)
    gateways[0].hear(b"0", m.encode(hello()))
    for step in range(400):
        clock.now += 0.1
        if step < 300 and rng.random() < 0.5:
            produced += 1
            log.append(numbered(produced), *TIMING, 0)
        if step == 300 or (step < 300 and rng.random() < 0.1):  # its server seems to be away; packets wait there
            visit += 1
            gateways[visit % 2].hear(b"%d" % visit, m.encode(hello()))
            outbox.send_again(to_another_trainer=True)
        at, peer = gateways[visit % 2], b"%d" % visit
        outbox.pump(lambda data, at=at, peer=peer: at.hear(peer, data), may_send=True)
        for gateway in rng.sample(gateways, 2):
            waiting = gateway.to.setdefault(b"engine", [])
            while waiting and (step > 300 or rng.random() < 0.6):
                data = waiting.pop(0)
                message, body = m.decode(data)
                if isinstance(message, m.SamplePacket):
                    taken += receiver.take(message, body, data, clock.now, lambda packet: True)
        receiver.confirm([delivery.receipt for delivery in taken])
        receiver.write(clock.now)
        for ack in receiver.due():
            for gateway in gateways:
                gateway.hear(b"engine", m.encode(ack))
        for data in at.to.pop(peer, ()):
            message, _ = m.decode(data)
            if isinstance(message, m.Ack) and rng.random() < 0.7:
                outbox.on_ack(message)
    values = [int(sample.obs) for delivery in taken for sample in delivery.buffer]
    assert values == [*range(1, produced + 1)]
    assert not outbox.pending()
    for part in (log, outbox, folder, store):
        part.close()
