"""The server's host name temporarily cannot be resolved."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OWN_ETC = (
    'mount --bind "$1/hosts" /etc/hosts && mount --bind "$1/resolv" /etc/resolv.conf && shift && '
    'exec "$@"'
)
"""A shell command that runs a process with its own /etc/hosts and with a name server that does not
exist.
"""


@pytest.mark.fault(
    "network",
    "the server's name cannot be looked up for a while",
    "one line; the robot drives on, and no sample is lost",
)
@pytest.mark.long
@pytest.mark.parametrize("transport", ["zmq", "tlspyo"])
def test_parts_find_the_server_again_when_its_name_is_back(tmp_path, transport):
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    (tmp_path / "resolv").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
    own_etc = [str(shutil.which("unshare")), "--mount", "sh", "-c", OWN_ETC, "sh", str(tmp_path)]
    if subprocess.run([*own_etc, "true"], capture_output=True).returncode:
        pytest.skip("a process cannot have an /etc of its own here")
    done = subprocess.run(
        [*own_etc, sys.executable, str(HERE / "named_server.py"), str(tmp_path), transport],
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if "knows no host" in line]
    assert len(lines) == 2, done.stdout  # worker and trainer, each once
