"""The lowest versions in pyproject.toml work.

The exception is torch: of its lowest version, package indexes only have the CUDA build, which is
gigabytes with its libraries, so the version in constraints.txt is tested instead. `make audit`
looks for known vulnerabilities; it asks advisory services, which tests cannot reach.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PINNED = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
)
TESTS = (
    "tests/roles/test_roles.py::test_everything_runs_from_construction_to_the_last_epoch",
    "tests/transport/test_contract.py::test_messages_of_all_sizes_arrive_unchanged_and_in_order_both_ways[tlspyo]",
    "tests/transport/test_tlspyo.py",
    "tests/config",
    "tests/wire",
    "tests/base",
    "tests/policies",
    "tests/trainer/test_snapshot.py",
)


def requirements():
    """Return the package's required dependencies."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [Requirement(line) for line in project["dependencies"]]


def lowest(requirement):
    (version,) = [s.version for s in requirement.specifier if s.operator == ">="]
    return version


def test_no_lower_bound_admits_a_known_hole():
    """These are CVE-2025-32434 and CVE-2026-24747 of torch, and races of filelock with symbolic
    links, which 3.20.3 ends.
    """
    bounds = {r.name: tuple(map(int, re.findall(r"\d+", lowest(r)))) for r in requirements()}
    assert bounds["torch"] >= (2, 10)
    assert bounds["filelock"] >= (3, 20, 3)


def test_the_tests_of_the_lowest_versions_are_there():
    for test in TESTS:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), test
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_the_three_roles_run_with_the_lowest_versions(tmp_path):
    constraints = tmp_path / "lowest.txt"
    lines = [
        f"{r.name}=={PINNED['torch'] if r.name == 'torch' else lowest(r)}" for r in requirements()
    ]
    lines += [f"{name}=={PINNED[name]}" for name in ("pytest", "pytest-timeout", "hypothesis")]
    constraints.write_text("\n".join(lines))
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin") / "python"

    def run(module, *arguments):
        subprocess.run([python, "-m", *module.split(), *arguments], cwd=ROOT, check=True)

    run("pip install -q pytest pytest-timeout hypothesis -c", constraints, "-e", ROOT)
    run("pip check")
    run("pytest -q -p no:cacheprovider --basetemp", tmp_path / "pytest", *TESTS)
