"""Python processes for tests."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "tests")))


def python(*arguments, code=0, cwd=ROOT, within_s=250, **environment):
    """Run Python with this package and this kit until it ends, and assert that its exit code is
    `code`; return its stdout and stderr.
    """
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": PYTHONPATH} | environment,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=within_s,
    )
    assert done.returncode == code, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, done.stderr


def stubborn_child():
    """Return a process that already ignores SIGTERM."""
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); "
        "time.sleep(3600)"
    )
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
    with process.stdout:
        process.stdout.readline()
    return process
