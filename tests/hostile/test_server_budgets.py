"""The most that each message of each role's key may cost the server: memory, messages to others,
work, and delayed honest messages.

Each test sends a flood of one message, small or large, from a connection with a valid key. Before
each message an honest worker sends a packet. Nothing is measured in seconds: work is counted in
calls.
"""

from __future__ import annotations

import itertools
import sys

import pytest
from kit.allocations import peak_of
from kit.episodes import episode
from kit.packets import header
from kit.relays import Scene

from tmrl_like.transport.base import Identity
from tmrl_like.wire import messages as m
from tmrl_like.wire.condition import MAX_NOTE, Condition
from tmrl_like.wire.policy import FRAME_BYTES

MEGABYTE = 1 << 20
SHORT, LONG = 150, 5000  # number of messages of a flood
FLOOD_BYTES = 4 * MEGABYTE
FRAMING_BYTES = 40  # added by the transport to each message
FIXED_BYTES = MEGABYTE // 2  # that a key may cost regardless of what it sends
# bytes that the server may hold, and may send, for each byte that it receives
MEMORY, TRAFFIC = 20, 20
WORK = 10  # a message may take as many calls as this many messages of an honest worker
ALMOST_ALL = 0.9  # share of an honest worker's packets that must pass
TEXT, NAME, INT = "x" * 4000, "n" * m.MAX_NAME, 2**62
CARS = "\U0001f697" * MAX_NOTE


TAKEN_OVER = tuple(range(INT, INT + m.MAX_TAKEN_OVER))
MESSAGES = {  # the i-th of a flood: a message, a message with its body, or invalid bytes
    "hello": lambda i: m.Hello("worker", f"w{i}", i + 1, "0"),
    "a large hello": lambda i: m.Hello(
        "worker", f"{i}".ljust(m.MAX_NAME, "x"), i + 1, NAME, m.Spaces(TEXT, TEXT), NAME, TAKEN_OVER
    ),
    "a packet of episodes": lambda i: header(
        i + 1, body_bytes=10, episodes=((1, episode()),) * m.MAX_EPISODES
    ),
    "a packet that awaits": lambda i: (header(i + 1, body_bytes=10, awaits=True), bytes(10)),
    "a large packet": lambda i: (header(INT, INT + 999_999, body_bytes=10), bytes(MEGABYTE)),
    "dismissal": lambda i: m.Dismissal("honest", 2, TEXT),
    "a large policy frame": lambda i: (m.PolicyFrame(1, i, 2**40, 2**50, 0.0), bytes(FRAME_BYTES)),
    "the first frame of a policy": lambda i: (m.PolicyFrame(i, 0, 2**40, 2**50, 0.0), bytes(100)),
    "a large beat": lambda i: m.Beat("w", Condition(alarm=CARS, ended=CARS, driver="program")),
    "a large report": lambda i: (m.Report(), bytes(m.MAX_REPORT_BYTES)),
    "look": lambda i: m.Look(),
    "probe": lambda i: m.Probe(),
    "a large probe": lambda i: (m.Probe(0.0, NAME, NAME, (NAME,) * 16), bytes(m.MAX_PROBE_BYTES)),
    "hello and bye": lambda i: m.Bye() if i % 2 else m.Hello("worker", "w", i + 1, "0"),
    "garbage": lambda i: bytes((m.WIRE_VERSION,)) + (60_000).to_bytes(4, "little") + bytes(60_000),
    "another version": lambda i: bytes((m.WIRE_VERSION + 1,)) + bytes(100),
    "a header of arrays": lambda i: (
        bytes((m.WIRE_VERSION,)) + (60_000).to_bytes(4, "little") + b"\x91" * 60_000
    ),
}
ROLES = {
    "worker": Identity("thief", ("worker",)),
    "watcher": Identity("tablet", ("watcher",)),
    "trainer": Identity("gpu", ("trainer",)),
}
# these go to all workers by design
TRAINERS_OWN = {"a large policy frame", "the first frame of a policy"}


def encoded(said):
    if isinstance(said, bytes):
        return said
    return m.encode(*said) if isinstance(said, tuple) else m.encode(said)


class Siege(Scene):
    """A relay with a trainer, an honest worker, and a hostile peer in some role; it counts what is
    sent without keeping it.
    """

    def __init__(self, role):
        super().__init__(max_waiting_bytes=16 * MEGABYTE)
        self.sent_bytes = self.honest_packets = 0
        self.receiver = self.trainer(key=ROLES["trainer"])
        self.honest = self.worker("honest", key=Identity("lab", ("worker",)))
        self.hostile = self.receiver
        if role != "trainer":
            self.hostile = self.peer(ROLES[role]).introduce(role, "w", spaces=None)

    def send(self, peer, data):
        if self.peers[peer].full:
            return False
        self.sent_bytes += len(data)
        message, _ = m.decode(data)
        self.honest_packets += isinstance(message, m.SamplePacket) and message.worker == "honest"
        return True

    def flood(self, make, number):
        """Send the hostile peer's messages between the honest worker's; return how many bytes and
        messages it sent.
        """
        sent_bytes = 0
        for i in range(number):
            self.honest.send(i + 1, body=bytes(100))
            data = encoded(make(i))
            sent_bytes += len(data) + FRAMING_BYTES
            self.hostile.say_bytes(data)
            self.now += 0.001
            if sent_bytes > FLOOD_BYTES:
                break
        return sent_bytes, i + 1


def calls_in(do):
    """Return how many Python and C functions are called."""
    calls = itertools.count()

    def count(frame, event, _):
        if event in ("call", "c_call"):
            next(calls)

    sys.setprofile(count)
    try:
        do()
    finally:
        sys.setprofile(None)
    return next(calls)


@pytest.mark.fault(
    "peers",
    "a valid key floods the server with any message",
    "the server holds 0.5 MiB and 20 times the bytes; nine of ten of the others' packets pass "
    "meanwhile",
)
@pytest.mark.parametrize("number", [SHORT, pytest.param(LONG, marks=pytest.mark.chaos)])
@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("role", ROLES)
def test_a_flood_costs_the_server_no_more_than_its_budget(role, message, number):
    scene = Siege(role)
    scene.receiver.full = role == "worker"
    sent_before = scene.sent_bytes
    (sent_bytes, messages), peak_bytes = peak_of(lambda: scene.flood(MESSAGES[message], number))
    assert peak_bytes <= FIXED_BYTES + MEMORY * sent_bytes
    probes_bytes = 8 * MEGABYTE if "probe" in message else 0
    honest_bytes = 200 * messages
    if message not in TRAINERS_OWN:
        returned = scene.sent_bytes - sent_before - honest_bytes - probes_bytes
        assert returned <= FIXED_BYTES + TRAFFIC * sent_bytes
    scene.receiver.full = False
    assert scene.relay.flush()
    trainer_left = role == "trainer" and not scene.ranks
    assert trainer_left or scene.honest_packets >= ALMOST_ALL * messages


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize("role", ROLES)
def test_a_message_takes_no_more_work_than_its_budget(role, message):
    make, scene = MESSAGES[message], Siege(role)
    for i in range(5):  # so that lines that are logged only once are already logged
        scene.honest.send(i + 1)
        scene.hostile.say_bytes(encoded(make(i)))
    hostile = [encoded(make(100 + i)) for i in range(10)]
    honest = calls_in(lambda: scene.honest.send(*range(100, 110), body=bytes(100)))
    assert calls_in(lambda: [*map(scene.hostile.say_bytes, hostile)]) <= WORK * honest
