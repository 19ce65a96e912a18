"""Telemetry over TCP: only complete records and only the newest, whatever happens to the
connection.
"""

import contextlib
import math
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from kit.clocks import LoopTime
from kit.waiting import until

from tmrl_like.envs.desktop.telemetry import Telemetry
from tmrl_like.envs.sensor import Sensor
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


@contextlib.contextmanager
def receiving(game, data, **options):
    """Send the first data to a `Telemetry` that is then ready; yield it and the connection."""
    options = {"is_valid": is_valid, "hint": "start the race", "first_within_s": 10.0} | options
    with ThreadPoolExecutor() as pool:
        made = pool.submit(Telemetry, LAYOUT, game.getsockname()[1], **options)
        with game.accept()[0] as link:
            link.sendall(data)
            with contextlib.closing(made.result()) as telemetry:
                yield telemetry, link


def number_of(telemetry):
    return telemetry.newest()[0]


@pytest.mark.parametrize("chunk_bytes", [5, 31])
def test_the_newest_whole_record_is_handed_out_until_it_is_too_old(game, chunk_bytes):
    data = b"".join(record(number) for number in range(20)) + record(99)[:7]
    with receiving(game, record(50), silent_after_s=0.5) as (telemetry, link):
        for begin in range(0, len(data), chunk_bytes):
            link.sendall(data[begin : begin + chunk_bytes])
        until(lambda: telemetry.newest() == (19.0, 1.0, 0.0))
        assert telemetry.newest() == (19.0, 1.0, 0.0)  # as the game may be slow
        silent = r"silent for .* s \(it accepts connections and sends nothing\): start the race"
        with pytest.raises(EnvironmentAwayError, match=silent):
            until(lambda: telemetry.newest() is None)
        link.sendall(record(99)[7:])
        assert telemetry.newest() == (99.0, 1.0, 0.0)


def test_bytes_that_are_not_records_end_the_connection_and_are_logged_once_until_one_is_whole(
    game, caplog
):
    shifted = record(1)[:-1] + record(2) + record(3)
    with receiving(game, record(1)) as (telemetry, link):
        for _ in range(3):
            link.sendall(shifted)
            assert link.recv(1) == b""
            link.close()
            link, _ = game.accept()
        (line,) = caplog.messages
        assert "what it sends are not records of 12 bytes" in line
        with link:
            link.sendall(record(4))
            until(lambda: number_of(telemetry) == 4.0)
            link.sendall(shifted)
            until(lambda: caplog.messages == [line] * 2)


def test_a_record_that_came_before_a_suspension_is_followed_by_a_new_one(game, monkeypatch):
    with receiving(game, record(1)) as (telemetry, link):
        assert number_of(telemetry) == 1.0
        later = SimpleNamespace(perf_counter=lambda: time.perf_counter() + 60.0)
        monkeypatch.setattr("tmrl_like.envs.sensor.time", later)
        monkeypatch.setattr(Sensor, "resumes_within_s", 30.0)  # the machine may be busy
        threading.Timer(0.02, link.sendall, [record(2)]).start()
        assert number_of(telemetry) == 2.0


def test_a_game_that_sends_nothing_for_four_seconds_while_it_loads_a_level_is_not_away(
    game, monkeypatch
):
    monkeypatch.setattr("tmrl_like.envs.sensor.time", clock := LoopTime(0.0))
    with receiving(game, record(1)) as (telemetry, _):
        clock.now = 3.9
        assert number_of(telemetry) == 1.0
        clock.now = 4.1
        with pytest.raises(EnvironmentAwayError, match="silent for"):
            number_of(telemetry)


def test_telemetry_holds_a_control_loop_up_no_longer_than_any_other_sensor():
    assert Telemetry.resumes_within_s == Sensor.resumes_within_s == 0.25


def test_nobody_there_is_one_line_and_a_game_that_comes_later_is_found(game):
    address = game.getsockname()
    game.close()
    with pytest.raises(EnvironmentAwayError, match=r"no value within 0\.5 s .*connection refused"):
        Telemetry(LAYOUT, address[1], first_within_s=0.5)
    with ThreadPoolExecutor() as pool:
        made = pool.submit(Telemetry, LAYOUT, address[1], first_within_s=10.0)
        time.sleep(0.3)  # it was refused once at least
        with socket.create_server(address) as later, later.accept()[0] as link:
            link.sendall(record(5))
            with contextlib.closing(made.result()) as telemetry:
                assert number_of(telemetry) == 5.0


def test_a_check_of_records_that_raises_costs_a_connection(game, caplog):
    with receiving(game, record(1), is_valid=lambda car: {1.0: True}[car[0]]) as (telemetry, link):
        link.sendall(record(2))
        with game.accept()[0] as again:
            again.sendall(record(1))
            assert number_of(telemetry) == 1.0
    assert "keyerror: 2.0" in caplog.text


def test_a_host_that_can_be_none_is_one_line():
    with pytest.raises(EnvironmentAwayError, match=r"gave no value within .* \(unicode"):
        Telemetry(LAYOUT, 9000, host="a..b", first_within_s=1.0)


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


def test_close_ends_the_connection_and_the_thread(game):
    with receiving(game, record(1)) as (telemetry, link):
        telemetry.close()
        link.settimeout(5.0)
        assert link.recv(1) == b""
        until(lambda: "tmrl-sensor" not in [thread.name for thread in threading.enumerate()])
