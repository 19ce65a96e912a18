import contextlib
import gc
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from kit import waiting

# Set before torch is imported: on a busy machine, threads that wait for each other make small
# networks 30 times slower.
os.environ.update(
    dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
)
# Keep compiled modules, so that the processes which tests start need not compile them again.
# Collecting takes half the time, too.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any load")


_TESTS, _unfreeze = itertools.count(), gc.unfreeze
FIGURES = {}  # measurements, by test and by its parameters


def pytest_addoption(parser):
    parser.addoption(
        "--keep-figures", action="store_true", help="write what tests measure to tests/figures.json"
    )


@pytest.fixture
def figure(request):
    """Return a function that records a line about what the test measured."""
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
    """Keep fixtures of a wider scope than a test away from the user's data folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMRL_LIKE_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """Give each test its own data folder, and leave the user's untouched."""
    home = tmp_path / "home"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.delenv("TMRL_LIKE_HOME", raising=False)
    monkeypatch.delenv("TMRL_LIKE_RUN", raising=False)
    yield home
    logging.getLogger("tmrl_like").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def log_handlers_stay():
    """Fail a test that leaves a log handler behind: it would write to the test's captured output,
    which is closed by then.
    """
    handlers = list(logging.getLogger().handlers)
    yield
    assert logging.getLogger().handlers == handlers, (
        "commands change the log: run them with the fixture command_line"
    )


@pytest.fixture(autouse=True)
def what_was_imported_is_not_searched(monkeypatch):
    """Keep garbage collections short by freezing everything that was imported.

    A control loop collects garbage when it starts, which takes a third of a second if all of pytest
    and torch is searched. A loop also unfreezes objects when it ends; here that does nothing, and
    cyclic garbage of tests is freed every hundred tests.
    """
    if next(_TESTS) % 100 == 0:
        gc.unfreeze()
    gc.collect()  # searches little more than the objects of the test before: the rest is frozen
    gc.freeze()
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


@pytest.fixture
def unfrozen(what_was_imported_is_not_searched, monkeypatch):
    """Freeze nothing, and let a control loop unfreeze objects when it ends, as outside of tests."""
    _unfreeze()
    monkeypatch.setattr(gc, "unfreeze", _unfreeze)


@pytest.fixture(autouse=True)
def denormals_stay():
    """Stop flushing denormals after each test: it is a state of the processor, and would change the
    arithmetic of later tests.
    """
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def command_line(monkeypatch, signals_stay):
    """Return a function that runs a command in this process; undo afterwards what it changed
    here.
    """
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
    names = {"SIGINT", "SIGTERM", "SIGHUP"}.intersection(dir(signal))
    handlers = {
        number: signal.getsignal(number) for number in map(signal.Signals.__getitem__, names)
    }
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def until():
    """Return the function that waits for a condition. Its deadline ends a hang, not slow work."""
    return waiting.until


@pytest.fixture
def full_disk(tmp_path):
    """Mount a file system of 4 MB at `tmp_path / "disk"`; return a function that fills it. Skip the
    test if mounting is not possible.
    """
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [shutil.which("mount") or "false", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip(
            "a file system cannot be mounted here; tests with an injected failure stand for it"
        )

    def fill():
        with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return disk / "ballast"  # remove this file to free the disk again

    yield fill
    subprocess.run(["umount", "-l", disk], check=True)


def house_on(transport):
    from house import House  # only after the number of threads is set

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
    """A `House` on the faster transport, for tests to which the transport does not matter."""
    yield from house_on("inproc")
