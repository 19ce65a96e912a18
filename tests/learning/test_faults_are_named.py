"""The learning doctor names at least eighteen of twenty faults, and none in ten healthy
trainings.
"""

from dataclasses import replace

import pytest
from faults import FAULTS, HEALTHY, train, verdict

SEEDS_AFTER = 800  # the thresholds were chosen with the seeds before these


@pytest.mark.learn
@pytest.mark.timeout(7200)
def test_faults_are_named_and_nothing_else_is():
    pytest.importorskip("mujoco")
    pytest.importorskip("Box2D")
    wrong = {}
    for name, case in (FAULTS | HEALTHY).items():
        lines = train(replace(case, seed=case.seed + SEEDS_AFTER))
        print(f"{name}: {lines[-1]}", flush=True)
        if not verdict(case, lines):
            wrong[name] = list(dict.fromkeys(lines))
    assert not set(wrong) & set(HEALTHY), wrong
    assert len(FAULTS) == 20
    assert len(wrong) <= 2, wrong
