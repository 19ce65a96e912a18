"""Telemetry over TCP: only complete records and only the newest, whatever happens to the
connection.
"""

import contextlib
import math
import socket
import struct
import threading
import time
from types import SimpleNamespace

import pytest

from tmrl_like.envs.desktop.telemetry import Telemetry
from tmrl_like.errors import ConfigError, EnvironmentAwayError

LAYOUT = "<3f"


def record(number):
    return struct.pack(LAYOUT, number, 1.0, 0.0)


def is_valid(values):
    return values[1:] == (1.0, 0.0) and math.isfinite(values[0])


@pytest.fixture
def game():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


@pytest.fixture
def telemetry(game):
    port = game.getsockname()[1]
    with contextlib.closing(
        Telemetry(LAYOUT, port, is_valid=is_valid, hint="start the race")
    ) as telemetry:
        yield telemetry


@pytest.mark.parametrize("chunk_bytes", [5, 31])
def test_the_newest_whole_record_is_handed_out_until_it_is_too_old(
    game, telemetry, until, chunk_bytes
):
    data = b"".join(record(number) for number in range(20)) + record(99)[:7]
    with game.accept()[0] as link:
        for begin in range(0, len(data), chunk_bytes):
            link.sendall(data[begin : begin + chunk_bytes])
        until(lambda: telemetry.next_record(60.0) == (19.0, 1.0, 0.0))
        assert telemetry.next_record(60.0) == (19.0, 1.0, 0.0)  # as the game may be slow
        with pytest.raises(EnvironmentAwayError, match="for 0 s"):
            telemetry.next_record(0.0)
        telemetry.forget()
        with pytest.raises(EnvironmentAwayError, match=r"for 0\.05 s"):
            telemetry.next_record(0.05)
        link.sendall(record(99)[7:])
        assert telemetry.next_record(5.0) == (99.0, 1.0, 0.0)


def connects_and_gets(game, telemetry, data, number):
    """Send data in a connection of its own, and assert that the newest record has this number."""
    with game.accept()[0] as link:
        link.sendall(data)
        assert telemetry.next_record(5.0)[0] == number


def test_a_record_that_was_cut_off_is_not_joined_with_the_next_connection(game, telemetry):
    connects_and_gets(game, telemetry, record(1) + record(2)[:7], 1.0)
    connects_and_gets(game, telemetry, record(3), 3.0)


def test_bytes_that_are_not_records_end_the_connection_and_the_next_one_is_whole_again(
    game, telemetry, caplog
):
    with game.accept()[0] as link:
        link.sendall(record(1)[:-1] + record(2) + record(3))
        assert link.recv(1) == b""
    assert "what it sends are not records of 12 bytes" in caplog.text
    connects_and_gets(game, telemetry, record(4), 4.0)


def test_a_record_from_before_a_cut_is_not_handed_out_after_it(game, telemetry):
    connects_and_gets(game, telemetry, record(1), 1.0)
    nothing = r"for 0\.1 s \(it accepts connections and sends nothing\): start the race"
    with game.accept()[0], pytest.raises(EnvironmentAwayError, match=nothing):
        telemetry.next_record(0.1)


def test_a_record_that_came_before_a_suspension_is_followed_by_a_new_one(
    game, telemetry, monkeypatch
):
    with game.accept()[0] as link:
        link.sendall(record(1))
        assert telemetry.next_record(5.0)[0] == 1.0
        later = SimpleNamespace(monotonic=lambda: time.monotonic() + 60.0)
        monkeypatch.setattr("tmrl_like.envs.desktop.telemetry.time", later)
        threading.Timer(0.05, link.sendall, [record(2)]).start()
        assert telemetry.next_record(5.0)[0] == 2.0


def test_nobody_there_is_one_line_and_a_game_that_comes_later_is_found(game, telemetry):
    address = game.getsockname()
    game.close()
    with pytest.raises(EnvironmentAwayError, match="connection refused"):
        telemetry.next_record(0.5)
    with socket.create_server(address) as later:
        connects_and_gets(later, telemetry, record(5), 5.0)


def test_a_check_of_records_that_raises_is_one_line_and_receiving_goes_on(game, until, caplog):
    picky = Telemetry(LAYOUT, game.getsockname()[1], is_valid=lambda car: {1.0: True}[car[0]])
    with contextlib.closing(picky):
        with game.accept()[0] as link:
            link.sendall(record(2))
            until(lambda: "KeyError: 2.0" in caplog.text)
        connects_and_gets(game, picky, record(1), 1.0)


def test_a_host_that_can_be_none_is_one_line(until, caplog):
    with contextlib.closing(Telemetry(LAYOUT, 9000, host="a..b")):
        until(lambda: "telemetry at a..b:9000: UnicodeError" in caplog.text)


@pytest.mark.parametrize(
    ("layout", "port", "message"),
    [
        ("<2f", 0, "port is 0; expected 1 to 65535"),
        ("2 floats", 9000, "'2 floats' is no layout"),
        ("", 9000, "layout is .*; expected one of a number or more"),
    ],
)
def test_no_port_and_no_layout_are_one_line(layout, port, message):
    with pytest.raises(ConfigError, match=message):
        Telemetry(layout, port)


def test_close_ends_the_thread_and_whoever_waits(telemetry):
    closing = threading.Timer(0.1, telemetry.close)
    closing.start()
    with pytest.raises(EnvironmentAwayError):
        telemetry.next_record(60.0)
    closing.join()
    assert "tmrl-telemetry" not in [thread.name for thread in threading.enumerate()]
