"""`make release` builds exactly what its commit contains: the same bytes each time, with everything
in one list.
"""

import hashlib
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


def run(*command, cwd, **env):
    return subprocess.check_output(command, cwd=cwd, env=os.environ | env, text=True)


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="the Makefile wants a POSIX shell")
@pytest.mark.timeout(3000)
def test_a_release_is_the_same_bytes_each_time_and_lists_what_it_brings(tmp_path):
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "second"
    for clone in (first, second):
        run("git", "clone", "-q", ROOT, clone, cwd=ROOT)
    run("make", "release", f"PYTHON={sys.executable}", cwd=first)
    made = {path.name: path.read_bytes() for path in (first / "dist").iterdir()}
    sums = dict(line.split()[::-1] for line in made.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in made.items()}

    fixed = {
        "SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct", cwd=second).strip(),
        "PIP_CONSTRAINT": str(second / "constraints.txt"),
    }
    run(first / ".venv" / "bin" / "python", "-m", "build", "-o", "dist", cwd=second, **fixed)
    for path in (second / "dist").iterdir():
        assert path.read_bytes() == made[path.name], path.name

    (wheel,) = (first / "dist").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {
        "tmrl_like",
        f"tmrl_like-{wheel.name.split('-')[1]}.dist-info",
    }
    bill = json.loads(made["tmrl_like.cdx.json"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    listed = {
        component["name"].lower().replace("_", "-"): component["version"]
        for component in bill["components"]
    }
    for line in project["dependencies"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(listed[requirement.name.lower()]), line
    assert bill["metadata"]["component"]["version"] == project["version"]
    assert str(tmp_path) not in made["tmrl_like.cdx.json"].decode()


@pytest.mark.skipif(os.name == "nt", reason="the Makefile wants a POSIX shell")
def test_a_virtual_environment_that_could_not_be_made_is_removed(tmp_path):
    (tmp_path / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    python = tmp_path / "python3"  # as on Debian without python3-venv
    python.write_text(
        '#!/bin/sh\n[ "$1" = -c ] || { mkdir -p .venv/bin; touch .venv/bin/python; exit 1; }\n'
    )
    python.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        run("make", ".venv/bin/python", "PYTHON=./python3", cwd=tmp_path)
    assert not (tmp_path / ".venv").exists()
