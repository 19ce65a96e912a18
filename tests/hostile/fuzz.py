"""Inputs for decoders, relay, receiver and log reading, derived from good ones; and how much memory
one may take.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import NamedTuple

SEEDS_OF_MESSAGES = 4
MAX_BYTES = 1 << 16


class Target(NamedTuple):
    """What takes an input, the good inputs that others are derived from, and how much memory one
    may take.
    """

    take: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    fixed_bytes: int = 1 << 20
    ratio: int = 20


def targets(folder):
    """All of them; `folder` is for files of theirs."""
    from kit.packets import write
    from test_server_budgets import MESSAGES, ROLES, Scene, encoded
    from test_trainer_budgets import SHAPES, body_of, message_of

    from tmrl_like.delivery.receiver import Receiver
    from tmrl_like.delivery.sample_store import read_files
    from tmrl_like.errors import DecodingError
    from tmrl_like.policies.weight_file import size_of
    from tmrl_like.wire import messages as m
    from tmrl_like.wire.packet import encode_packet
    from tmrl_like.wire.policy import PolicyAssembler, split_policy

    def decode(data):
        try:
            m.decode(data)
        except DecodingError:
            pass

    def packet(data):
        try:
            header, body = m.decode(data)
        except DecodingError:
            return
        if isinstance(header, m.SamplePacket):
            for delivery in list(Receiver().take(header, body, data, 0.0, lambda _: True)):
                for block in delivery.buffer.blocks:
                    assert len(block) == len(block.samples())

    def columns(data):
        """The first byte says whether the rest is compressed, the next four how many samples and
        bytes it has.
        """
        if len(data) > 9:
            samples, size = (
                int.from_bytes(data[1:5], "little") % 1_000_001,
                int.from_bytes(data[5:9], "little"),
            )
            is_compressed, body = bool(data[0] % 2), data[9:]
            size = size % m.MAX_BODY_BYTES if is_compressed else len(body)
            header = m.SamplePacket("w", 1, 1, max(1, samples), 1, 0, samples, size, is_compressed)
            packet(encode_packet(header, body))

    def relay(data):
        """Messages of some roles: a byte that names the role, two for the length, the message."""
        scene, at, roles = Scene("worker", is_trainer_full=False), 0, list(ROLES.items())
        while at + 3 <= len(data):
            name, identity = roles[data[at] % len(roles)]
            end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "little")
            scene.tell(name.encode(), identity, data[at + 3 : end])
            scene.now, at = scene.now + 0.1, end
        scene.relay.tick(scene.now + 1.0)
        scene.relay.beat()

    def log(data):
        file = folder / "1.log"
        file.write_bytes(data)
        try:
            for buffer in Receiver().replay(read_files([file])):
                for block in buffer.blocks:
                    block.samples()
        except m.WireVersionError:
            pass

    def memory_for(manifest):
        if (size := size_of(manifest)) > 1 << 16:
            raise DecodingError("this actor has other parameters")
        return memoryview(bytearray(size))

    def policy(data):
        """Frames, each behind two bytes for its length; the memory for them is not written before
        it is filled.
        """
        assembler, at = PolicyAssembler(memory_for, max_bytes=1 << 16), 0
        while at + 2 <= len(data):
            end = at + 2 + int.from_bytes(data[at : at + 2], "little")
            try:
                frame, body = m.decode(data[at + 2 : end])
                if isinstance(frame, m.PolicyFrame):
                    assembler.add(frame, body)
            except DecodingError:
                pass
            at = end

    messages = [encoded(make(i)) for make in MESSAGES.values() for i in range(2)]
    small = [data for data in messages if len(data) < MAX_BYTES // SEEDS_OF_MESSAGES]
    shapes = [shape for shape in SHAPES.values() if len(body_of(shape)) < MAX_BYTES]
    packets = tuple(
        message_of(shape, is_compressed) for shape in shapes for is_compressed in (True, False)
    )
    write(folder / "seed", packets[:4])
    (seed,) = (folder / "seed").glob("*.log")

    def framed(role, data):
        return bytes((role,)) + len(data).to_bytes(2, "little") + data

    return {
        "messages": Target(decode, tuple(small)),
        "packets": Target(packet, packets, fixed_bytes=600 << 20),
        "columns": Target(
            columns,
            tuple(
                bytes((0,))
                + shape.rows.to_bytes(4, "little")
                + len(body).to_bytes(4, "little")
                + body
                for shape, body in zip(shapes, map(body_of, shapes), strict=True)
            ),
            fixed_bytes=600 << 20,
        ),
        "relay": Target(
            relay,
            tuple(
                b"".join(framed(role, data) for data in small[i::7] if len(data) < 2000)
                for role in range(4)
                for i in range(7)
            ),
        ),
        "log": Target(log, (seed.read_bytes(),), fixed_bytes=32 << 20),
        "policy": Target(
            policy,
            tuple(
                b"".join(
                    len(frame).to_bytes(2, "little") + frame
                    for frame in split_policy(({"w": ("U8", (size,))}, bytes(size)), 1, 0.0)
                )
                for size in (10, 1000)
            ),
        ),
    }


def check(target, data):
    """One input; raises what the target raises, and AssertionError where it takes too much
    memory.
    """
    tracemalloc.start()
    try:
        target.take(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allowed = target.fixed_bytes + target.ratio * len(data)
    assert peak_bytes <= allowed, (
        f"{peak_bytes} bytes of memory for an input of {len(data)}; at most {allowed}"
    )


def changed(seeds, rng):
    """A good input with a few changes: other bytes, a piece that is missing, there twice, or
    another one's.
    """
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at, size = rng.randrange(len(data) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        match rng.randrange(5):
            case 0:
                data[at : at + 1] = bytes(
                    (rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))),)
                )
            case 1:
                del data[at : at + size]
            case 2:
                data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
            case 3:
                other = rng.choice(seeds)
                start = rng.randrange(len(other) + 1)
                data[at : at + size] = other[start : start + size]
            case _:
                data[at : at + 4] = rng.getrandbits(32).to_bytes(4, rng.choice(("little", "big")))
    return bytes(data[:MAX_BYTES])


def inputs(target, seed):
    """Good inputs, and then changed ones without end, the same for the same seed."""
    rng = random.Random(seed)
    yield from target.seeds
    while True:
        yield changed(target.seeds, rng)
