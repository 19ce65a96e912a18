"""A screen for tests: an X server without a monitor."""

import contextlib
import importlib.util
import os
import shutil
import subprocess

import pytest

REQUIRED = "TMRL_LIKE_REQUIRE_SCREEN"


@contextlib.contextmanager
def start_x_server():
    """An X server of one's own: DISPLAY and process."""
    missing = [] if shutil.which("Xvfb") else ["Xvfb"]
    missing += [
        name for name in ("mss", "Xlib", "pygame") if importlib.util.find_spec(name) is None
    ]
    if missing:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and there is no {', '.join(missing)}")
        pytest.skip(f"needs {', '.join(missing)}")
    read, write = os.pipe()
    server = subprocess.Popen(
        [
            "Xvfb",
            "-displayfd",
            str(write),
            "-screen",
            "0",
            "1280x800x24",
            "-nolisten",
            "tcp",
            "-noreset",
        ],
        pass_fds=(write,),
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    try:
        with os.fdopen(read) as pipe:
            number = pipe.readline().strip()  # written when it is ready
        assert number, f"Xvfb ended with {server.wait(5)}"
        yield f":{number}", server
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def x_server():
    """DISPLAY of an X server that was started for the tests."""
    with start_x_server() as (display, _):
        yield display


@pytest.fixture
def mortal_screen(monkeypatch):
    """The test runs on a screen of its own, and may end it."""
    with start_x_server() as (display, server):
        monkeypatch.setenv("DISPLAY", display)
        yield server


@pytest.fixture
def screen(x_server, monkeypatch):
    """The test runs on that screen."""
    monkeypatch.setenv("DISPLAY", x_server)
    return x_server
