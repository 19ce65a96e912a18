import contextlib
import importlib.metadata
import os
import shutil
import socket
import threading
import time
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_commands import TINY

from tmrl_like.cli import doctor
from tmrl_like.config.paths import default_keys_folder
from tmrl_like.errors import RefusedError
from tmrl_like.server.server import Server
from tmrl_like.transport import KeyFolder, listen
from tmrl_like.wire import messages as m

Look = Callable[..., str]


@pytest.fixture
def look(command_line: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Look:
    """Call the doctor, on a machine that is well but for what the test does to it; returns what it prints."""
    for name in ("_SLOW_FSYNC_S", "_WAIT_S", "_CHECK_S", "_LOAD_S"):  # however busy this machine is
        monkeypatch.setattr(doctor, name, 250.0)
    monkeypatch.setattr(doctor, "_LATE_SHARE", 1.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(1 << 40))

    def call(*arguments: str, exit_code: int = 1) -> str:
        code = command_line("doctor", *arguments)
        out = capsys.readouterr().out
        assert code == exit_code, out
        return out

    return call


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring one takes seconds."""
    monkeypatch.setattr(doctor, "_environment", lambda *_: iter(()))


@contextlib.contextmanager
def answering(keys: Path, **strange: object) -> Iterator[int]:
    """A server that only returns probes, with something strange about it; yields its port."""
    link, stop = listen("zmq", "127.0.0.1", 0, KeyFolder(keys)), threading.Event()

    def serve() -> None:
        while not stop.is_set():
            if incoming := link.receive(0.01):
                _, body = m.decode(incoming.data)
                known = {
                    "time_s": time.time(),
                    "software": "0.1.0",
                    "key": incoming.identity.name,
                    "roles": ("worker",),
                }
                link.send(incoming.peer, m.encode(m.Probe(**(known | strange)), body))
        link.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield link.address[1]
    finally:
        stop.set()
        thread.join()


def test_a_machine_that_is_well_has_no_problem_and_gets_no_keys(look: Look) -> None:
    out = look(exit_code=0)
    assert "ok       versions: tmrl_like" in out
    assert out.endswith("0 problems, 0 warnings\n")
    assert not default_keys_folder().exists()


def test_an_experiment_whose_server_runs_has_no_problem(look: Look) -> None:
    with Server(0, host="127.0.0.1") as server:
        out = look(TINY, f"--server.port={server.address[1]}", exit_code=0)
    assert "environment: 300 steps of " in out
    assert "takes this machine's key, local, for worker and trainer" in out
    assert " MB/s and " in out
    assert "0 problems" in out


def test_a_server_that_does_not_run_here_yet_is_no_problem(look: Look, free_port: int, no_environment: None) -> None:
    assert f"nobody listens on port {free_port}" in look(TINY, f"--server.port={free_port}", exit_code=0)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--server.host=no-such-host.invalid", "there is no host no-such-host.invalid"),
        ("--trainer.device=cuda:99", "trainer.device is 'cuda:99'; torch has no such"),
        (
            "--server.engine=tls://no-such-node.invalid",
            "problem  engine tls://no-such-node.invalid:4222: there is no host",
        ),
    ],
)
def test_what_an_experiment_says_wrongly(
    option: str, problem: str, look: Look, free_port: int, no_environment: None
) -> None:
    out = look(TINY, f"--server.port={free_port}", option)
    assert problem in out
    assert "1 problem," in out


def test_a_port_that_is_closed_on_another_machine(
    look: Look, free_port: int, no_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "is_loopback", lambda _: False)
    assert f"port {free_port} of 127.0.0.1 does not answer" in look(TINY, f"--server.port={free_port}")


def test_a_key_that_the_server_does_not_know(look: Look, tmp_path: Path, no_environment: None) -> None:
    keys = KeyFolder(tmp_path / "keys")
    mine = KeyFolder(tmp_path / "mine")
    with Server(0, host="127.0.0.1", keys_dir=keys.path) as server:
        option = f"--server.port={server.address[1]}", f"--server.keys_dir={mine.path}"
        assert "this machine has no key: there" in look(TINY, *option)
        mine.join(keys.invite("robot", ("worker",)))
        assert "takes this machine's key, robot, for worker" in look(TINY, *option, exit_code=0)
    keys.revoke("robot")
    with Server(0, host="127.0.0.1", keys_dir=keys.path) as server:
        option = f"--server.port={server.address[1]}", f"--server.keys_dir={mine.path}"
        assert "refuses this machine's key" in look(TINY, *option)


@pytest.mark.parametrize(
    ("strange", "finding", "exit_code"),
    [
        ({"time_s": 1e9}, "warning  server 127.0.0.1:{}: its clock is", 0),
        ({"software": "0.0.9"}, "runs tmrl_like 0.0.9, this machine", 0),
    ],
)
def test_a_server_with_another_clock_or_version(
    strange: dict[str, object], finding: str, exit_code: int, look: Look, tmp_path: Path, no_environment: None
) -> None:
    with answering(tmp_path / "keys", **strange) as port:
        out = look(TINY, f"--server.port={port}", f"--server.keys_dir={tmp_path / 'keys'}", exit_code=exit_code)
    assert finding.format(port) in out
    assert "0 problems, 1 warning\n" in out


def test_something_else_on_the_servers_port(
    look: Look, tmp_path: Path, no_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_WAIT_S", 0.2)
    KeyFolder(default_keys_folder()).server_keys()
    with socket.create_server(("127.0.0.1", 0)) as other:
        out = look(TINY, f"--server.port={other.getsockname()[1]}")
    assert "it does not answer this machine's key" in out


class Link:
    """To a server that returns probes."""

    def send(self, data: bytes) -> bool:
        self.returned = m.encode(m.Probe(time.time(), "0.1.0", "k", ("worker",)), m.decode(data)[1])
        return True

    def receive(self, timeout_s: float) -> bytes:
        return self.returned


def test_a_server_of_another_wire_version(monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link()
    monkeypatch.setattr(link, "receive", lambda _: bytes((m.WIRE_VERSION + 1,)) + link.returned[1:])
    with pytest.raises(RefusedError, match="upgrade the older of the two"):
        list(doctor._talk(link, doctor.Load()))


def test_a_link_that_is_too_slow() -> None:
    *_, (state, line) = doctor._talk(Link(), doctor.Load(sample_bytes=1 << 40, samples_per_s=1e6))
    assert state == doctor.PROBLEM
    assert "a worker sends up to" in line


def test_an_environment_that_raises_or_is_late(look: Look, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    port = f"--server.port={free_port}"
    assert "problem  environment: " in look(TINY, port, "--env", "tiny.NoSuchEnv")
    monkeypatch.setattr(doctor, "_LATE_SHARE", -1.0)
    assert "warning  environment: " in look(TINY, port, exit_code=0)


def test_a_check_that_hangs_holds_up_no_other(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    released, done = threading.Event(), threading.Event()

    def hang() -> Iterator[doctor.Finding]:
        released.wait()
        done.set()
        yield from ()

    monkeypatch.setattr(doctor, "_CHECK_S", 1.0)
    monkeypatch.setattr(doctor, "_versions", hang)
    out = look()
    released.set()
    assert done.wait(60)
    assert "problem  versions: hangs: nothing after" in out
    assert " keys: " in out


def test_a_disk_that_is_full_slow_or_closed(
    look: Look, no_environment: None, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SLOW_FSYNC_S", 0.0)
    assert "warning  disk: an fsync takes" in look(exit_code=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: namedtuple("Usage", "free")(0))
    out = look()
    assert "problem  disk: 0.0 GB are free" in out
    assert "warning  disk: 0 MB are free" in out

    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert "problem  disk: cannot write to" in look()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_keys_that_others_may_read_or_replace(look: Look) -> None:
    keys = default_keys_folder()
    KeyFolder(keys).server_keys()
    keys.chmod(0o777)
    assert "and others may write to it: chmod 700" in look()
    keys.chmod(0o700)
    (keys / "peer.json").chmod(0o644)
    assert "problem  keys: " in look()


def test_a_priority_that_is_not_granted(
    look: Look, free_port: int, no_environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(doctor, "set_priority", refuse)
    assert "ok       real time: no real-time priority is granted" in look(exit_code=0)
    out = look(TINY, f"--server.port={free_port}", "--worker.realtime_priority=10", exit_code=0)
    assert "warning  real time: no real-time priority is granted" in out


def test_a_package_that_is_missing(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "rtgym":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert "warning  versions: rtgym is not installed" in look(exit_code=0)
