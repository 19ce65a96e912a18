import contextlib
import gc
import itertools
import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kit import waiting
from small_disk import small_disk

# Before torch is imported: threads that wait for each other on a busy machine make small networks
# 30 times slower.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
)
# Compiled once, and not by each process that a test starts: half of the time of collecting, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")


_TESTS, _unfreeze = itertools.count(), gc.unfreeze
FIGURES = {}  # of each test, of each of its parameters, what was measured


def pytest_addoption(parser):
    parser.addoption(
        "--keep-figures", action="store_true", help="write what tests measure to tests/figures.json"
    )


@pytest.fixture
def figure(request):
    """Keeps a line about what the test measured."""
    test, _, parameters = (
        request.node.nodeid.removeprefix("tests/").removesuffix("]").partition("[")
    )
    return lambda line: FIGURES.setdefault(test, {}).update(
        {parameters: f"{line}, {time.strftime('%Y-%m-%d')}"}
    )


def pytest_terminal_summary(terminalreporter, config):
    if FIGURES:
        terminalreporter.section("figures")
    for test, lines in FIGURES.items():
        for parameters, line in lines.items():
            terminalreporter.line(f"{test} {parameters}: {line}")
    if config.getoption("--keep-figures"):
        path = Path(__file__).with_name("figures.json")
        known = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(
            json.dumps(dict(sorted((known | FIGURES).items())), indent=1, ensure_ascii=False)
            + "\n",
            encoding="utf-8",
        )


@pytest.fixture(autouse=True, scope="session")
def home_of_fixtures(tmp_path_factory):
    """Fixtures of a wider scope than a test leave the user's data folder alone, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMRL_LIKE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """Each test has a data folder of its own and leaves the user's alone."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.delenv("TMRL_LIKE_HOME", raising=False)
    monkeypatch.delenv("TMRL_LIKE_RUN", raising=False)
    yield home
    logging.getLogger("tmrl_like").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def log_handlers_stay():
    """A handler that a test leaves behind writes to that test's captured output, which is closed by
    then.
    """
    handlers = list(logging.getLogger().handlers)
    yield
    assert logging.getLogger().handlers == handlers, (
        "commands change the log: run them with the fixture command_line"
    )


@pytest.fixture(autouse=True)
def what_was_imported_is_not_searched(monkeypatch):
    """A control loop that begins collects garbage: a third of a second, where pytest and torch are
    searched, too.

    A loop that ends leaves frozen what it found so; what tests leave in circles is freed every
    hundred tests.
    """
    if next(_TESTS) % 100 == 0:
        gc.unfreeze()
    gc.collect()  # what the test before left, and hardly more: all else is frozen
    gc.freeze()
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture
def unfrozen(what_was_imported_is_not_searched, monkeypatch):
    """Nothing is frozen, and a control loop that ends unfreezes what it froze, as outside of
    tests.
    """
    _unfreeze()
    monkeypatch.setattr(gc, "unfreeze", _unfreeze)


@pytest.fixture(autouse=True)
def denormals_stay():
    """Flushing denormals is a state of the processor; left on, it changes the arithmetic of later
    tests.
    """
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def command_line(monkeypatch, signals_stay):
    """Run a command in this process, and take back what it did to it."""
    import torch

    from tmrl_like.cli import main

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    root, threads = logging.getLogger(), torch.get_num_threads()
    handlers, level = list(root.handlers), root.level
    yield lambda *arguments: main(arguments)
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)
    torch.set_num_threads(threads)


@pytest.fixture
def signals_stay():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def until():
    """Wait for a condition. The deadline is there for what hangs, not for what is slow."""
    return waiting.until


@pytest.fixture
def full_disk(tmp_path):
    """A file system of 4 MB, in tmp_path / "disk"; call it to fill the disk. Skipped where none can
    be made.
    """
    with small_disk(tmp_path / "disk") as fill:
        if fill is None:
            pytest.skip(
                "a file system cannot be mounted here; tests with an injected failure stand for it"
            )
        yield fill


def house_on(transport):
    from house import House  # after the number of threads is set

    with contextlib.ExitStack() as stack:
        yield House(transport, stack)


@pytest.fixture(params=["zmq", "inproc"])
def house(request):
    yield from house_on(request.param)


@pytest.fixture
def zmq_house():
    yield from house_on("zmq")


@pytest.fixture
def inproc_house():
    """Where the transport does not matter: the faster one."""
    yield from house_on("inproc")
