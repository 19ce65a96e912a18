"""Processes end with the process that started them."""

import contextlib
import errno
import os
import subprocess
import sys
import threading

import psutil
import pytest
from kit.failing import failing
from kit.pythons import PYTHONPATH, stubborn_child

from tmrl_like.base.children import start_script
from tmrl_like.base.processes import (
    ProcessGuard,
    end_processes,
    is_alive,
)
from tmrl_like.errors import ConfigError

SCRIPT = """
import subprocess, sys, time
from tmrl_like.base.processes import end_with_parent
end_with_parent()
print("ready", flush=True)
time.sleep(3600)
"""

PARENT = """
import subprocess, sys, time
from pathlib import Path
from kit.failing import failing
from kit.pythons import stubborn_child
from tmrl_like.base.children import start_script
from tmrl_like.base.processes import ProcessGuard
script = start_script(Path(sys.argv[1]), stdout=subprocess.PIPE)
script.stdout.readline()
guard = ProcessGuard()
other = stubborn_child()
guard.add(other.pid)
print(script.pid, other.pid, guard.pid, flush=True)
time.sleep(3600)
"""

STOP = """
import sys, time

def stop(why):
    sys.exit(why)

time.sleep(1.2)
"""

STOPPED = """
import time
from kit.pythons import stubborn_child
from tmrl_like.base.processes import ProcessGuard
guard = ProcessGuard()
other = stubborn_child()
guard.add(other.pid)
guard.call_at_end(("stop.stop", "no answer"))
print(other.pid, guard.pid, flush=True)
time.sleep(3600)
"""

CARELESS = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(3600)"])
print(child.pid, flush=True)
time.sleep(3600)
"""


WITHOUT_PIDFDS = """
import os, sys, time
from tmrl_like.base.processes import end_with_parent

def refuse(pid):
    raise OSError(38, "Function not implemented")

os.pidfd_open = refuse
end_with_parent(lambda: print("ended", flush=True))
time.sleep(0.2)
print("alive", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def begun(code, *arguments, **how):
    """Run Python code that prints the numbers of processes; yield its process and those."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, **how) as parent:
        yield parent, [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]


@pytest.fixture
def stubborn():
    """A process that ignores requests to end."""
    process = stubborn_child()
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def test_what_a_process_that_is_killed_has_started_ends_and_nothing_waits_for_it_any_more(
    tmp_path, until
):
    (tmp_path / "script.py").write_text(SCRIPT)
    with begun(PARENT, tmp_path / "script.py") as (parent, started):
        assert len(started) == 3
        assert all(map(is_alive, started))
        parent.kill()
    until(lambda: not any(map(is_alive, started)))


def test_a_call_of_the_guard_is_made_even_if_its_parent_dies_first_and_said_if_it_fails(
    tmp_path, until
):
    """The parent dies while the guard imports the function. What it guards ends all the same."""
    (tmp_path / "stop.py").write_text(STOP)
    with begun(STOPPED, cwd=tmp_path, stderr=subprocess.PIPE) as (parent, started):
        parent.kill()
        said = parent.stderr.read().decode()
    until(lambda: not any(map(is_alive, started)))
    assert said.splitlines() == [
        "stop_from_outside failed: SystemExit: no answer; what it stops may still move"
    ]


def test_a_parent_that_the_kernel_does_not_watch_is_watched_all_the_same(tmp_path):
    (tmp_path / "script.py").write_text(WITHOUT_PIDFDS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    said, _ = start_script(tmp_path / "script.py", **pipes).communicate(timeout=60)
    assert said.split() == [b"alive"]


def test_a_process_lives_as_long_as_the_system_has_no_descriptor_to_look_with(monkeypatch):
    monkeypatch.setattr("psutil.Process.is_running", failing(errno.ENFILE))
    assert is_alive(psutil.Process())


def test_a_guard_that_is_closed_lets_live_and_one_that_guards_nothing_has_no_process(stubborn):
    guard = ProcessGuard()
    assert guard.pid == 0
    guard.add(stubborn.pid)
    reaper = psutil.Process(guard.pid)
    guard.close()
    guard.close()
    assert is_alive(stubborn)
    assert not is_alive(reaper)


@pytest.mark.parametrize(
    "call",
    [
        ("os.getpit",),
        ("__main__.stop",),
        ("os.name",),
        (os.getpid,),
        ("shutil.which",),
        ("shutil.which", "ls", 0, "/bin", "too many"),
    ],
    ids=str,
)
def test_a_call_that_a_guard_could_not_make_is_refused_at_once(call):
    guard = ProcessGuard()
    with pytest.raises(ConfigError):
        guard.call_at_end(call)
    assert guard.pid == 0


def test_threads_that_need_a_guard_while_it_is_being_started_share_its_process(monkeypatch):
    started, seen = [], []

    def add_and_look():
        seen.append(guard.pid)
        guard.add(os.getpid())

    def start(*arguments, **streams):
        started.append(start_script(*arguments, **streams))
        other.start()
        other.join(0.1)
        return started[-1]

    monkeypatch.setattr("tmrl_like.base.processes.start_script", start)
    guard, other = ProcessGuard(), threading.Thread(target=add_and_look)
    guard.call_at_end(("os.getpid",))
    other.join()
    assert [process.pid for process in started] == seen == [guard.pid]
    guard.close()


def test_a_process_has_ended_although_its_parent_takes_no_note_of_it():
    with begun(CARELESS) as (careless, children):
        assert end_processes(children, 5.0, 0.1) == []
        careless.kill()
