"""A machine without a screen: the tests that need one are skipped, and the last lines say so."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_one_line_says_what_is_skipped_without_an_x_server_and_how_to_have_it():
    environment = {name: value for name, value in os.environ.items() if name != "TMRL_LIKE_REQUIRE_SCREEN"}
    environment |= {"PATH": "", "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/envs/desktop/test_desktop_env.py",
        "-k",
        "window",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "for want of a screen" in line]
    assert line.endswith("tests were skipped for want of a screen (test_desktop_env): sudo apt-get install xvfb")
