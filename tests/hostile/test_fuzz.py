"""Inputs that were derived from good ones: nothing raises what it should not, or takes more memory than its budget."""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import fuzz
import pytest

TARGETS = ("messages", "packets", "columns", "relay", "log", "policy")
INPUTS = 150
SECONDS_OF_EACH = 100


@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_do_no_harm(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    target = fuzz.targets(tmp_path)[name]
    for data in itertools.islice(fuzz.inputs(target, seed=1), len(target.seeds) + INPUTS):
        fuzz.check(target, data)


def test_the_fuzzer_finds_what_takes_too_much_memory_and_what_raises(tmp_path: Path) -> None:
    def fail(data: bytes) -> None:
        raise ZeroDivisionError

    with pytest.raises(AssertionError, match="bytes of memory"):
        fuzz.check(fuzz.Target(lambda data: len(bytearray(4 << 20)) and None, (b"",)), b"")
    with pytest.raises(ZeroDivisionError):
        fuzz.check(fuzz.Target(fail, (b"",)), b"")
    assert set(fuzz.targets(tmp_path)) == set(TARGETS)


@pytest.mark.chaos
@pytest.mark.timeout(len(TARGETS) * (2 * SECONDS_OF_EACH + 100))
@pytest.mark.fault(
    "peers",
    "inputs that a fuzzer derives from good ones: messages, packets, logs, policies, histories of a server",
    "nothing raises what it should not, or takes more memory than its budget",
)
def test_ten_minutes_of_inputs_do_no_harm(figure: Callable[[str], None]) -> None:
    inputs = 0
    for name in TARGETS:
        command = [sys.executable, fuzz.__file__, name, "--seconds", str(SECONDS_OF_EACH)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:]
        inputs += sum(map(int, re.findall(r"(\d+) (?:runs in|inputs)", done.stdout)))
    how = "guided by coverage" if importlib.util.find_spec("atheris") else "at random"
    figure(f"{inputs:,} inputs in {len(TARGETS) * SECONDS_OF_EACH} s, {how}")
