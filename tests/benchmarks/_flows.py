"""Light workers of `engine.py`: real messages over the real transport, many in a process, no environment, no files."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import zmq

from tmrl_like.transport import KeyFolder, connect
from tmrl_like.types import StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import PacketWriter, encode_packet

SPACES = m.Spaces("o", "a")
SAMPLES = 50  # a packet: 2.5 kB
_WINDOW = 64  # packets of a worker on their way
_KEPT = 1000  # packets of a worker that are not stored
_PATIENCE_S = 5.0
_BEAT_S = 0.5
_SILENT_AFTER_S = 4.0


def packet_body() -> bytes:
    """The columns of drone samples (act 2, obs 4 float32, reward, flags, info), noise: nothing compresses it."""
    rng, writer = np.random.default_rng(0), PacketWriter()
    for i in range(SAMPLES):
        obs = tuple(rng.standard_normal(1).astype(np.float32) for _ in range(4))
        sample = (rng.standard_normal(2).astype(np.float32), obs, np.float32(rng.standard_normal()), False, False, {})
        writer.append(sample, StepTiming(1e9 + i * 0.05, 1e-4, 1e-5, 3))
    return writer.rows().encode()


class Flow:
    """One worker: numbers packets, keeps each until it is stored, sends again what may be lost.

    Attributes:
        sequence: of the newest packet.
        policies: when the last piece of each policy came, by version; `time.time()`.
    """

    def __init__(self, name: str, port: int, keys: Path, body: bytes) -> None:
        self.name, self.incarnation, self._body = name, secrets.randbits(62) + 1, body
        self.sequence = self.stored = self.resent = 0
        self.feed = 0
        self.policies: dict[int, float] = {}
        self._frames = self._policy_received = 0
        self._received, self._next = 0, 1
        self._kept: OrderedDict[int, float] = OrderedDict()  # when each was made
        self._rate: float | None = None
        self._until = self._due_at = 0.0
        self._progress_at = self._heard_at = time.monotonic()
        self._said_at = 0.0
        self._hello = m.encode(m.Hello("worker", name, self.incarnation, "bench", SPACES))
        self.link: Any = connect("zmq", "127.0.0.1", port, KeyFolder(keys))

    @property
    def done(self) -> bool:
        return time.monotonic() > self._until and self.stored == self.sequence

    def start(self, rate: float | None, seconds: float, offset_s: float) -> None:
        """Make packets for so long; `rate` a second, None: as fast as they leave."""
        now = time.monotonic()
        self._rate, self._until, self._due_at, self.resent = rate, now + seconds, now + offset_s, 0

    def read(self) -> None:
        for _ in range(64):
            if (data := self.link.receive(0.0)) is None:
                return
            self._heard_at = time.monotonic()
            message, _ = m.decode(data)
            if isinstance(message, m.Ack):
                self._on_ack(message)
            elif isinstance(message, m.PolicyFrame):
                self._frames = self._frames + 1 if message.index else 1
                if message.index == message.frames - 1 and self._frames == message.frames:
                    self.policies[message.version] = time.time()
                    self._policy_received, self._said_at = message.version, 0.0
            elif isinstance(message, m.Welcome):
                self._send_again(next(iter(self._kept), self.sequence + 1) - 1 if message.feed != self.feed else None)
                self.feed = message.feed
            elif isinstance(message, m.HelloWanted):
                self.link.send(self._hello)

    def _on_ack(self, ack: m.Ack) -> None:
        if ack.incarnation != self.incarnation:
            return
        received, stored = ack.received // SAMPLES, ack.stored // SAMPLES  # as numbers of packets
        if received > self._received or stored > self.stored:
            self._progress_at = time.monotonic()
        self.stored = max(self.stored, stored)
        while self._kept and next(iter(self._kept)) <= stored:
            self._kept.popitem(last=False)
        self._received = max(self._received, received)
        self._next = max(self._next, stored + 1)
        if ack.again:
            self._send_again(max(received, self.stored))

    def _send_again(self, after: int | None) -> None:
        """All behind a packet; None: all that was not received."""
        self._received = self._received if after is None else after
        self.resent += max(0, self._next - self._received - 1)
        self._next = self._received + 1

    def turn(self, now: float) -> None:
        """Send what is due."""
        if now - self._said_at > _BEAT_S:
            self._said_at = now
            if now - self._heard_at > _SILENT_AFTER_S:
                self.feed = 0
            beat = m.Beat(self.name, policy_received=self._policy_received)
            self.link.send(m.encode(beat) if self.feed else self._hello)
        if not self.feed:
            return
        if self._next - 1 > self._received and now - self._progress_at > _PATIENCE_S:
            self._progress_at = now
            self._send_again(None)
        for _ in range(32):
            if self._next - 1 - self._received >= _WINDOW or not (self._next <= self.sequence or self._make(now)):
                return
            if not self.link.send(self._packet(self._next)):
                return
            if self._next - 1 == self._received:
                self._progress_at = now
            self._next += 1

    def _make(self, now: float) -> bool:
        if now >= self._until or self.sequence - self.stored >= _KEPT or (self._rate and now < self._due_at):
            return False
        self._due_at += 1 / self._rate if self._rate else 0.0
        self.sequence += 1
        self._kept[self.sequence] = time.time()
        return True

    def _packet(self, number: int) -> bytes:
        last, oldest = number * SAMPLES, self.stored * SAMPLES + 1
        entries = last - SAMPLES + 1, last, oldest, 0, SAMPLES
        packet = m.SamplePacket(
            self.name, self.incarnation, *entries, len(self._body), False, observed_at_s=self._kept[number]
        )
        return encode_packet(packet, self._body)


def run_flows(names: list[str], port: int, keys: Path, pipe: Any) -> None:
    """A process of light workers; told over a pipe what to do: ("load", rate, seconds), ("policies",)."""
    body, poller = packet_body(), zmq.Poller()
    flows = [Flow(name, port, keys, body) for name in names]
    for flow in flows:
        poller.register(flow.link._socket, zmq.POLLIN)
    is_ready = is_busy = False
    deadline = 0.0
    while True:
        awake = dict(poller.poll(2))
        now = time.monotonic()
        for flow in flows:
            if flow.link._socket in awake or not flow.feed:
                flow.read()
            flow.turn(now)
        if not is_ready and all(flow.feed for flow in flows):
            is_ready = True
            pipe.send("ready")
        if is_busy and (all(flow.done for flow in flows) or now > deadline):
            is_busy = False
            pipe.send({(f.name, f.incarnation): (f.sequence, f.stored, f.resent) for f in flows})
        if pipe.poll():
            what, *arguments = pipe.recv()
            if what == "policies":
                pipe.send([flow.policies for flow in flows])
            elif what == "load":
                rate, seconds = arguments
                for i, flow in enumerate(flows):
                    flow.start(rate, seconds, i / len(flows) * 0.1)
                is_busy, deadline = True, now + seconds + 60
