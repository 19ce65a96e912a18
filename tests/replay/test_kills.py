"""SIGKILL at any moment: while it resumes, appends, begins another file of the log, or writes a checkpoint."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FULL = pytest.param(200, id="full", marks=[pytest.mark.chaos, pytest.mark.timeout(600)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, so that many can be killed in seconds")
@pytest.mark.parametrize("count", [pytest.param(24, id="short"), FULL])
def test_a_killed_process_costs_no_stored_sample_and_no_checkpoint(tmp_path, count):
    seed = random.randrange(2**31)
    done = subprocess.run(
        [sys.executable, str(HERE / "kill_at_random.py"), str(tmp_path / "checkpoint"), str(count), str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE.parents[1]), str(HERE.parent)))},
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(f"seed {seed}: {found}")
    assert found["unreadable"] == [], (seed, found)
    assert found["lost"] == found["older_agent"] == 0, (seed, found)
    assert found["kills"] == count
    assert min(found["stored"], found["files"], found["checkpoints"]) >= count // 6, found
