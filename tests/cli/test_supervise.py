"""Ending the child processes of a command."""

import os
import subprocess
import sys

import pytest

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
