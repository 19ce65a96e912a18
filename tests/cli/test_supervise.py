"""Ending the child processes of a command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tmrl_like
from tmrl_like.cli.supervise import Child, Family

CHILD = """
import signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
print("ready", flush=True)
while not asked:
    time.sleep(0.01)
print("asked", flush=True)
time.sleep(0.5)
sys.exit(len(asked))
"""


@pytest.mark.skipif(os.name == "nt", reason="a child on Windows is asked by Ctrl-Break")
def test_a_child_that_takes_its_time_is_asked_once():
    """A second request would end it at once, while it writes its last checkpoint."""
    command = [sys.executable, "-c", CHILD]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        child, family = Child("trainer", process), Family()
        assert process.stdout.readline() == "ready\n"
        family.ask_to_end(child)
        assert process.stdout.readline() == "asked\n"
        family.stop(child, within_s=60.0)
        assert child.exit_code == 1


@pytest.mark.parametrize("imports_from_it", [False, True])
def test_a_child_imports_from_the_working_folder_only_if_its_parent_does(
    imports_from_it, tmp_path, monkeypatch
):
    """`python -m tmrl_like` does, `tmrl-like` does not."""
    Path("msgspec.py").write_text("raise SystemExit(3)")
    monkeypatch.setenv("PYTHONPATH", str(Path(tmrl_like.__file__).parents[1]))
    if imports_from_it:
        monkeypatch.syspath_prepend(tmp_path)
    with Family() as family:
        child = family.start("server", ["--version"])
        assert child.process.wait(60.0) == (3 if imports_from_it else 0)
