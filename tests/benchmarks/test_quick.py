"""Each script of this folder runs, with `--quick`, to its end; none hangs for a process of it that is gone."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from _common import Part

SCRIPTS = sorted(p for p in Path(__file__).parent.glob("*.py") if not p.name.startswith(("_", "test_")))


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_ends_in_a_minute(script: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(script), "--quick"], cwd=tmp_path, capture_output=True, text=True, timeout=75, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]


def ends(pipe: Any) -> None:
    sys.exit(3)


def says_nothing(pipe: Any) -> None:
    time.sleep(60)


def test_a_part_that_ends_or_says_nothing_ends_the_run() -> None:
    with Part(ends) as part, pytest.raises(SystemExit, match="ends ended with exit code 3"):
        part.hear()
    with Part(says_nothing) as part, pytest.raises(SystemExit, match="says_nothing does not answer"):
        part.hear(0.1)
