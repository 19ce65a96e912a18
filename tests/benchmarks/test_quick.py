"""Each script of this folder runs, with `--quick`, to its end."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted(p for p in Path(__file__).parent.glob("*.py") if not p.name.startswith(("_", "test_")))


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_benchmark_ends_in_a_minute(script: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(script), "--quick"], cwd=tmp_path, capture_output=True, text=True, timeout=75, check=False
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
