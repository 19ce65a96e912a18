"""Inputs derived from valid ones, for decoder, relay and store: no unexpected exception, and no
more memory than the budget.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import struct
from functools import partial

import pytest
from kit.allocations import peak_of
from kit.packets import header, write
from kit.trainings import taken
from test_server_budgets import MESSAGES, ROLES, Siege, encoded
from test_trainer_budgets import SHAPES, body_of, message_of

from tmrl_like.delivery.receiver import Receiver
from tmrl_like.delivery.sample_store import read_file
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import encode_packet

MAX_BYTES = 1 << 16
SMALL = [shape for shape in SHAPES.values() if len(body_of(shape)) < MAX_BYTES]


class Columns:
    """The input is a packet's columns, after what the packet says of them (`ANNOUNCED`)."""

    ANNOUNCED = struct.Struct("<?II")  # are they compressed? number of samples, and size
    budget_bytes = 600 << 20

    def __init__(self, folder):
        bodies = [(shape, body_of(shape)) for shape in SMALL]
        self.seeds = [
            self.ANNOUNCED.pack(False, shape.rows, len(body)) + body for shape, body in bodies
        ]

    def take(self, data):
        is_compressed, samples, size = self.ANNOUNCED.unpack_from(data.ljust(9, b"\0"))
        samples, body = max(1, samples % 1_000_001), data[9:]
        size = size % m.MAX_BODY_BYTES if is_compressed else len(body)
        packet = header(1, samples, body_bytes=size, compressed=is_compressed)
        for delivery in taken(Receiver(), encode_packet(packet, body)):
            for block in delivery.buffer.blocks:
                assert len(block) == len(block.samples())


class Relay:
    """The input is a sequence of messages to a server, each after its sender and length
    (`ANNOUNCED`).
    """

    ANNOUNCED = struct.Struct("<BH")
    budget_bytes = 1 << 20

    def __init__(self, folder):
        said = [encoded(make(i)) for make in MESSAGES.values() for i in range(2)]
        small = [data for data in said if len(data) < 2000]
        self.seeds = [
            b"".join(self.ANNOUNCED.pack(sender, len(data)) + data for data in small[i::7])
            for sender in range(len(ROLES))
            for i in range(7)
        ]

    def take(self, data):
        scene, at = Siege("worker"), 0
        senders = [scene.peer(ROLES["worker"]), scene.peer(ROLES["watcher"]), scene.receiver]
        while at + 3 <= len(data):
            sender, size = self.ANNOUNCED.unpack_from(data, at)
            end = at + 3 + size
            senders[sender % 3].say_bytes(data[at + 3 : end])
            scene.now, at = scene.now + 0.1, end
        scene.relay.tick(scene.now + 1.0)
        scene.relay.beat()


class Log:
    """The input is a file of a trainer's store."""

    budget_bytes = 32 << 20

    def __init__(self, folder):
        write(folder / "seed", [message_of(shape, True) for shape in SMALL[-2:]])
        (seed,) = (folder / "seed").glob("*.log")
        self.seeds = [seed.read_bytes()]
        self._file = folder / "1.log"

    def take(self, data):
        self._file.write_bytes(data)
        with contextlib.suppress(m.WireVersionError):
            for buffer in Receiver().replay(filter(None, [read_file(self._file)])):
                for block in buffer.blocks:
                    block.samples()


def changed(seeds, rng):
    """Return a valid input with a few changes: pieces that are removed, repeated, or replaced by a
    byte or by a piece of another input.
    """
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        other, size = rng.choice(seeds), rng.choice((1, 1, 2, 4, 8, 64))
        at, start = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
        pieces = (
            bytes((rng.choice((0, 0x7F, 0xFF, rng.randrange(256))),)),
            b"",
            data[at : at + size] * rng.choice((2, 50)),
            other[start : start + size],
        )
        data[at : at + rng.choice((1, size))] = rng.choice(pieces)
    return bytes(data[:MAX_BYTES])


@pytest.mark.fault(
    "peers",
    "inputs that are derived from good ones: messages, packets, logs, histories of a server",
    "nothing raises what it should not, or takes more memory than its budget",
)
@pytest.mark.parametrize(
    "inputs", [50, pytest.param(100_000, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("kind", [Columns, Relay, Log])
def test_changed_inputs_do_no_harm(kind, tmp_path, caplog, inputs):
    caplog.set_level("CRITICAL")
    target, rng = kind(tmp_path), random.Random(inputs)
    further = (changed(target.seeds, rng) for _ in range(inputs))
    for data in itertools.chain(target.seeds, further):
        _, peak_bytes = peak_of(partial(target.take, data))
        assert peak_bytes <= target.budget_bytes + 20 * len(data)
