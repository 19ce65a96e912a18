"""The server's own thread: what it does without being asked."""

from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest
from kit.clocks import Clock
from kit.relays import SPACES
from kit.waiting import until

from tmrl_like.server.server import Server
from tmrl_like.transport import KeyFolder, TransportOptions, connect
from tmrl_like.wire import messages as m


@pytest.fixture
def peer_with(tmp_path):
    """Return a function that starts a server with these limits, and returns a peer of it."""
    with ExitStack() as stack:

        def start(limits):
            how = {"transport": "inproc", "keys_dir": tmp_path, "limits": limits}
            server = stack.enter_context(Server(0, **how))
            peer = connect("inproc", *server.address, KeyFolder(tmp_path), limits)
            return stack.enter_context(closing(peer))

        yield start


def test_a_server_beats_four_times_before_its_peers_take_it_for_lost(peer_with, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("tmrl_like.server.server.time", SimpleNamespace(monotonic=clock))
    peer = peer_with(TransportOptions(silent_after_s=1.0))

    def hears(kind):
        data = peer.receive(0.02)
        return data is not None and isinstance(m.decode(data)[0], kind)

    peer.send(m.encode(m.Hello("worker", "w", 1, "0", SPACES)))
    until(lambda: hears(m.Welcome))
    for _ in range(3):
        clock.now += 0.25
        until(lambda: hears(m.Beat))


def test_an_answer_that_is_too_large_is_one_line_and_the_server_goes_on(peer_with, caplog):
    limits = TransportOptions(max_message_bytes=10_000)
    peer = peer_with(limits)
    for rest in (0, 0, 100):  # the server adds its version and more to a probe
        room = limits.max_message_bytes - len(m.encode(m.Probe())) - rest
        assert peer.send(m.encode(m.Probe(), bytes(room)))
    until(lambda: peer.receive(0.02))
    (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("the answer to inproc is dropped: a message of ")
