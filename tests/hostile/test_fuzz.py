"""Inputs that were derived from good ones: nothing raises what it should not, or takes more memory
than its budget.
"""

from __future__ import annotations

import itertools

import fuzz
import pytest

TARGETS = ("messages", "packets", "columns", "relay", "log", "policy")


@pytest.mark.fault(
    "peers",
    "inputs that are derived from good ones: messages, packets, logs, policies, histories of a "
    "server",
    "nothing raises what it should not, or takes more memory than its budget",
)
@pytest.mark.parametrize(
    "inputs", [75, pytest.param(100_000, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])]
)
@pytest.mark.parametrize("name", TARGETS)
def test_changed_inputs_do_no_harm(name, tmp_path, caplog, inputs):
    caplog.set_level("CRITICAL")
    target = fuzz.targets(tmp_path)[name]
    for data in itertools.islice(fuzz.inputs(target, seed=inputs), len(target.seeds) + inputs):
        fuzz.check(target, data)
