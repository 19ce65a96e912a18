"""A device in its own process: its clock, its newest state, and how it ends."""

from __future__ import annotations

import contextlib
import os
import struct
import time

import psutil
import pytest
from kit.pythons import python
from kit.waiting import until

from tmrl_like.base.device import DeviceProcess
from tmrl_like.base.processes import is_alive
from tmrl_like.errors import EnvironmentFaultError

STATE = struct.Struct("<q8s")  # cycles of 5 ms, the newest command
SCRIPT = """
import struct
from tmrl_like.base.device import DeviceProgram, cycles
program = DeviceProgram()
if program.options:
    raise SystemExit(program.options)
for number, _ in enumerate(cycles(0.005, 0.1)):
    program.publish(struct.pack("<q8s", number, program.newest_command().data))
"""
ORPHAN = """
import os, sys
from pathlib import Path
from tmrl_like.base.device import DeviceProcess
print(DeviceProcess("the arm", Path(sys.argv[1]), "", 8, 16, 30.0).pid, flush=True)
os._exit(1)
"""


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "arm.py"
    file.write_text(SCRIPT)
    return file


@pytest.fixture
def arm(script):
    arm = DeviceProcess("the arm", script, "", 8, STATE.size, 30.0)
    yield arm
    arm.close()
    arm.close()
    assert not psutil.pid_exists(arm.pid)


def state(arm):
    number, command = STATE.unpack(arm.look(3.0))
    return number, command


def test_it_keeps_its_clock_while_nobody_looks_and_a_command_stays_until_the_next(arm):
    began_at, (first, _) = time.perf_counter(), state(arm)
    for command in (b"forwards", b"back    "):
        arm.command(command)
        until(lambda wanted=command: state(arm)[1] == wanted)
    last = until(lambda: state(arm)[0] > first + 20 and state(arm))
    assert last[1] == b"back    "
    assert 0.09 < (last[0] - first) * 0.005 < time.perf_counter() - began_at + 0.1


def test_one_that_has_died_or_was_closed_says_so_at_each_call(arm):
    psutil.Process(arm.pid).kill()

    def has_ended():  # its last threads end a moment later
        with contextlib.suppress(EnvironmentFaultError):
            arm.command(bytes(8))
            return False
        return True

    until(has_ended)
    calls = (
        lambda: arm.command(bytes(8)),
        lambda: arm.look(1.0),
        lambda: arm.wait_for(lambda _: False, "stop", 9.0),
    )
    for told in (
        r"^the arm's process ended with -?\d+$",
        "^the arm is not connected: it was closed$",
    ):
        for call in calls:
            with pytest.raises(EnvironmentFaultError, match=told):
                call()
        arm.close()


@pytest.mark.skipif(os.name == "nt", reason="a process cannot be stopped here")
def test_one_that_hangs_is_silent_and_closes(arm):
    psutil.Process(arm.pid).suspend()
    with pytest.raises(
        EnvironmentFaultError, match=r"^the arm has sent no state for 0\.3 s: its process hangs$"
    ):
        until(lambda: arm.look(0.05, 0.3) is None)
    with pytest.raises(EnvironmentFaultError, match=r"^the arm did not come home within 0\.1 s$"):
        arm.wait_for(lambda state: False, "come home", 0.1)


def test_one_that_cannot_start_says_its_last_words(script):
    with pytest.raises(EnvironmentFaultError, match=r"^the arm's process ended with 1: no power$"):
        DeviceProcess("the arm", script, "no power", 8, STATE.size, 30.0)


def test_it_ends_with_the_process_that_started_it(script):
    out, _ = python("-c", ORPHAN, script, code=1)
    pid = int(out)
    until(lambda: not psutil.pid_exists(pid) or not is_alive(psutil.Process(pid)))
