"""Screens for tests, X servers without a monitor; and a clock that a test sets."""

import contextlib
import functools
import importlib.util
import os
import shutil
import subprocess

import pytest
from kit.clocks import LoopTime

from tmrl_like.envs.clock import Clock


def pytest_itemcollected(item):
    """Let time-steps be late: the machine may be busy."""
    item.add_marker(pytest.mark.filterwarnings("ignore:Time-step timed out"))


REQUIRED = "TMRL_LIKE_REQUIRE_SCREEN"


@contextlib.contextmanager
def start_x_server():
    """Run an X server; yield its DISPLAY and its process."""
    missing = [] if shutil.which("Xvfb") else ["Xvfb"]
    missing += [
        name for name in ("mss", "Xlib", "pygame") if importlib.util.find_spec(name) is None
    ]
    if missing:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and there is no {', '.join(missing)}")
        pytest.skip(f"needs {', '.join(missing)}")
    read, write = os.pipe()
    options = f"-displayfd {write} -screen 0 1280x800x24 -nolisten tcp -noreset"
    server = subprocess.Popen(
        ["Xvfb", *options.split()], pass_fds=(write,), stderr=subprocess.DEVNULL
    )
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            number = pipe.readline().strip()  # written when the server is ready
        assert number, f"Xvfb ended with {server.wait(5)}"
        yield f":{number}", server
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def manual_time(monkeypatch):
    """The time of environments in real time, which only advances by waits, and by hand."""
    time = LoopTime()
    clock = functools.partial(Clock, now=time.perf_counter, sleep=time.sleep)
    monkeypatch.setattr("tmrl_like.envs.real_time.Clock", clock)
    return time


@pytest.fixture(scope="session")
def x_server():
    """The DISPLAY of an X server started for all tests."""
    with start_x_server() as (display, _):
        yield display


@pytest.fixture
def mortal_screen(monkeypatch):
    """Run the test on its own screen, which it may end; yield the server's process."""
    with start_x_server() as (display, server):
        monkeypatch.setenv("DISPLAY", display)
        yield server


@pytest.fixture
def screen(x_server, monkeypatch):
    """Run the test on the screen that all tests share."""
    monkeypatch.setenv("DISPLAY", x_server)
    return x_server
