"""The server's own thread: what it does without being asked."""

from contextlib import closing
from types import SimpleNamespace

from kit.clocks import Clock
from kit.waiting import until
from relay_kit import SPACES

from tmrl_like.server.server import Server
from tmrl_like.transport import KeyFolder, TransportOptions, connect
from tmrl_like.wire import messages as m


def test_a_server_beats_four_times_before_its_peers_take_it_for_lost(tmp_path, monkeypatch):
    clock, limits = Clock(), TransportOptions(silent_after_s=1.0)
    monkeypatch.setattr("tmrl_like.server.server.time", SimpleNamespace(monotonic=clock))

    def hears(kind):
        data = peer.receive(0.02)
        return data is not None and isinstance(m.decode(data)[0], kind)

    with (
        Server(0, host="beats", transport="inproc", keys_dir=tmp_path, limits=limits) as server,
        closing(connect("inproc", *server.address, KeyFolder(tmp_path), limits)) as peer,
    ):
        peer.send(m.encode(m.Hello("worker", "w", 1, "0", SPACES)))
        until(lambda: hears(m.Welcome))
        for _ in range(3):
            clock.now += 0.25
            until(lambda: hears(m.Beat))


def test_an_answer_that_is_too_large_is_one_line_and_the_server_goes_on(tmp_path, caplog):
    limits = TransportOptions(max_message_bytes=10_000)
    with (
        Server(0, host="large", transport="inproc", keys_dir=tmp_path, limits=limits) as server,
        closing(connect("inproc", *server.address, KeyFolder(tmp_path), limits)) as peer,
    ):
        for rest in (0, 0, 100):  # the server adds its version and more to a probe
            room = limits.max_message_bytes - len(m.encode(m.Probe())) - rest
            assert peer.send(m.encode(m.Probe(), bytes(room)))
        until(lambda: peer.receive(0.02))
    (line,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert line.startswith("the answer to inproc is dropped: a message of ")
