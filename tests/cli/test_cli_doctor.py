import importlib.metadata
import os
import shutil
import socket
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import tmrl_like
from tmrl_like.cli import doctor
from tmrl_like.config.paths import keys_folder
from tmrl_like.errors import RefusedError
from tmrl_like.server.server import Server
from tmrl_like.transport import KeyFolder
from tmrl_like.wire import messages as m
from tmrl_like.worker.timing import StepTimes

QUICK = "TINY --env.step_s 0 --server.port"


@pytest.fixture
def look(out_of, monkeypatch):
    """Return a function that runs `doctor` on a machine without problems, apart from the test's,
    and returns its output.
    """
    monkeypatch.setattr(doctor, "WAIT_S", 250.0)  # sufficient on a busy machine
    monkeypatch.setattr(doctor, "HANGS_AFTER_S", 250.0)
    monkeypatch.setattr(doctor, "LATE_SHARE", 1.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=1 << 40))
    return lambda *words, code=1: out_of("doctor", *words, code=code)


def link(wire_version=m.WIRE_VERSION, **strange):
    """Return a link to a server whose answers to probes have these values."""
    known = {"time_s": time.time(), "software": tmrl_like.__version__, "roles": ("worker",)}
    answer = m.encode(m.Probe(**known | strange))
    return Mock(receive=Mock(return_value=bytes((wire_version,)) + answer[1:]))


def test_a_machine_that_is_well_has_no_problem_and_gets_no_keys(look):
    out = look(code=0)
    assert "ok       versions: tmrl_like" in out
    assert out.endswith("0 problems, 0 warnings\n")
    assert not keys_folder().exists()


def test_an_experiment_whose_server_runs_has_no_problem(look):
    with Server(0, host="127.0.0.1") as server:
        out = look(QUICK, server.address[1], code=0)
    assert "environment: 300 steps of " in out
    assert "takes this machine's key, local, for worker and trainer" in out
    assert " MB/s and " in out
    assert "0 problems" in out


def test_a_port_on_which_nobody_listens_is_a_problem_on_another_machine(
    look, free_port, monkeypatch
):
    assert f"nobody listens on port {free_port}" in look(QUICK, free_port, code=0)
    monkeypatch.setattr(doctor, "is_loopback", lambda _: False)
    assert f"port {free_port} of 127.0.0.1 does not answer" in look(QUICK, free_port)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("--server.host=no-such-host.invalid", "there is no host no-such-host.invalid"),
        ("--trainer.device=cuda:99", "trainer.device is 'cuda:99'; torch has no such"),
        (
            "--server.engine=tls://no-such-node.invalid",
            "engine tls://no-such-node.invalid:4222: there is no host",
        ),
    ],
)
def test_what_an_experiment_says_wrongly(option, problem, look, free_port):
    out = look(QUICK, free_port, option)
    assert problem in out
    assert "1 problem," in out


def test_a_key_that_the_server_does_not_know(look):
    keys, mine = KeyFolder(Path("keys")), KeyFolder(Path("mine"))

    def look_with_mine(code=1):
        with Server(0, host="127.0.0.1", keys_dir=keys.path) as server:
            return look(QUICK, server.address[1], "--server.keys_dir mine", code=code)

    assert "this machine has no key: there" in look_with_mine()
    mine.join(keys.invite("robot", ("worker",)))
    assert "takes this machine's key, robot, for worker" in look_with_mine(code=0)
    keys.revoke("robot")
    assert "refuses this machine's key" in look_with_mine()


def test_something_else_on_the_servers_port(look, monkeypatch):
    monkeypatch.setattr(doctor, "WAIT_S", 0.2)
    KeyFolder(keys_folder()).server_keys()
    with socket.create_server(("127.0.0.1", 0)) as other:
        out = look(QUICK, other.getsockname()[1])
    assert "it does not answer this machine's key" in out


@pytest.mark.parametrize(
    ("strange", "state", "said"),
    [
        ({}, doctor.PROBLEM, "a worker sends up to"),  # more than any link carries
        ({"time_s": 1e9}, doctor.WARNING, "its clock is"),
        ({"software": "0.0.9"}, doctor.WARNING, "runs tmrl_like 0.0.9, this machine"),
    ],
)
def test_a_server_that_is_slow_or_has_another_clock_or_version(strange, state, said):
    load = doctor.Load(sample_bytes=1 << 40, samples_per_s=1e6)
    findings = [*doctor.talk(link(**strange), load)]
    assert [line for found, line in findings if found == state and said in line]


def test_a_link_that_is_long_or_stood_still_once_is_not_slow(monkeypatch):
    trips_s = iter([0.15] * (doctor._PINGS + 1) + [1.9, 0.17, 0.16])
    answer = m.Probe(time.time(), tmrl_like.__version__, "local", ("worker",))
    monkeypatch.setattr(doctor, "_ask", lambda *_: (next(trips_s), 0.0, answer))
    *_, (found, line) = doctor.talk(Mock(), doctor.Load(sample_bytes=1 << 17, samples_per_s=8))
    assert found == doctor.OK, line


def test_a_machine_that_is_busy_as_it_asks_does_not_make_its_link_fast():
    slow = link()
    slow.send.side_effect = lambda _: time.sleep(0.1) or True
    assert doctor._ask(slow, 0)[0] > 0.09


def test_a_server_of_another_wire_version():
    with pytest.raises(RefusedError, match="upgrade the older of the two"):
        [*doctor.talk(link(wire_version=m.WIRE_VERSION + 1), doctor.Load())]


def test_each_environment_of_a_worker_sends(look, free_port, monkeypatch):
    loads = []
    monkeypatch.setattr(doctor, "_disk", lambda _, load: loads.append(load) or iter(()))
    steps = StepTimes(np.array([[0.0, 0.0, 0.0, 0.25]] * 3), 1.0)
    monkeypatch.setattr("tmrl_like.worker.worker.RolloutWorker.measure", lambda *_: steps)
    for envs in (1, 4):
        look(QUICK, free_port, f"--worker.envs {envs}", code=0)
    assert [load.samples_per_s for load in loads] == [4.0, 16.0]


def test_an_environment_that_is_late(look, free_port, monkeypatch):
    monkeypatch.setattr(doctor, "LATE_SHARE", -1.0)
    assert "warning  environment: " in look(QUICK, free_port, code=0)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("", "command line: actor.class_path: importing quitter failed: "),
        ("def actor(observation_space, action_space): ", ""),
    ],
)
def test_code_of_the_experiment_that_ends_its_process_is_a_problem(
    look, tmp_path, monkeypatch, code, said
):
    Path("quitter.py").write_text(f"{code}raise SystemExit('no arm')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "quitter", raising=False)
    out = look("TINY --actor quitter.actor")
    assert f"problem  environment: {said}SystemExit: no arm" in out


def test_a_check_that_hangs_holds_up_no_other(look, monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(doctor, "HANGS_AFTER_S", 0.2)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: released.wait())
    out = look()
    assert "problem  disk: hangs: nothing after" in out
    assert " keys: " in out  # this check comes after it
    released.set()
    for thread in threading.enumerate():
        if thread.name == "tmrl-doctor":
            thread.join()


def test_a_reader_who_has_left_ends_it_without_a_traceback(command_line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", Mock(**{"write.side_effect": BrokenPipeError}))
    monkeypatch.setattr(threading, "excepthook", lambda failed: print(failed, file=sys.stderr))
    assert command_line("doctor") == 1
    assert capsys.readouterr().err == ""


def test_a_disk_that_is_full(look, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Mock(free=0))
    out = look()
    assert "problem  disk: 0.0 GB are free" in out
    assert "warning  disk: 0 MB are free" in out


def test_a_data_folder_that_is_a_file(look, monkeypatch, tmp_path):
    Path("file").touch()
    monkeypatch.setenv("TMRL_LIKE_HOME", "file")
    assert f"problem  disk: cannot write to {tmp_path / 'file'}" in look()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_keys_that_others_may_read_or_replace(look):
    keys = keys_folder()
    KeyFolder(keys).server_keys()
    keys.chmod(0o777)
    assert "and others may write to it: chmod 700" in look()
    keys.chmod(0o700)
    (keys / "peer.json").chmod(0o644)
    assert "problem  keys: " in look()


def test_a_small_board_without_torch_has_no_problem(look, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "device: " not in look(code=0)


def test_a_torch_that_lacks_what_it_needs_is_a_problem(look, tmp_path, monkeypatch):
    Path("torch.py").write_text("import a_package_that_is_missing")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    problem = "problem  device: ModuleNotFoundError: No module named 'a_package_that_is_missing'"
    assert problem in look()


def test_a_package_that_is_missing(look, monkeypatch):
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError)
    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert "warning  versions: rtgym is not installed" in look(code=0)
