"""The tutorials run as they stand, in a short form."""

import os
import subprocess
import sys
from pathlib import Path

TUTORIALS = Path(__file__).parents[1] / "tutorials"


# rtgym warns of an overrun in a thread of its own; raised there it would end that thread, and `step` would hang
LATE = "ignore:Time-step timed out:UserWarning"


def run(script: str, home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", LATE, str(TUTORIALS / script), *arguments],
        env={**os.environ, "TMRL_LIKE_HOME": str(home), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_the_drone_tutorial_runs_with_crc_debugging(own_home: Path) -> None:
    shown = run("drone_tutorial.py", own_home, "--crc-debug", "--epochs", "1", "--steps", "20")
    assert "flights reached the target" in shown
    assert "transitions are what the environment produced" in shown


def test_the_drone_tutorial_runs_without(own_home: Path) -> None:
    shown = run("drone_tutorial.py", own_home, "--epochs", "1", "--steps", "20")
    assert "flights reached the target" in shown
    assert "CRC" not in shown
