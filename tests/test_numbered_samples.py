"""Numbered samples and their audit alone, without a pipeline."""

import numpy as np
import pytest
from kit.fakes import ListMemory
from numbered_samples import Audit, Ledger, NumberedEnv, audit, produced

from tmrl_like.types import Buffer


def rows(*numbers, worker=1, incarnation=1):
    return np.array([[worker, incarnation, number] for number in numbers], np.float32).reshape(
        -1, 3
    )


def of_one(*numbers):
    return [(1, 1, number) for number in numbers]


@pytest.mark.parametrize(
    ("recorded", "count", "found"),
    [
        ((0, 1, 2), 3, Audit(3, [], [], [])),
        ((0, 2), 4, Audit(4, lost=of_one(1, 3), doubled=[], out_of_order=[])),
        ((0, 1, 1, 2), 3, Audit(3, [], doubled=of_one(1), out_of_order=[])),
        ((0, 2, 1), 3, Audit(3, [], [], out_of_order=of_one(1))),
        ((), 2, Audit(2, lost=of_one(0, 1), doubled=[], out_of_order=[])),
    ],
)
def test_an_audit_finds_what_is_lost_doubled_and_out_of_order(recorded, count, found):
    assert audit(rows(*recorded), {(1, 1): count}) == found
    assert found.exactly_once == (recorded == tuple(range(count)))


def test_an_audit_keeps_workers_and_incarnations_apart_and_says_what_is_wrong():
    held = np.concatenate([rows(0, 1), rows(0, 5, 6, worker=2), rows(0, 0, incarnation=2)])
    found = audit(held, {(1, 1): 2, (2, 1): 7, (1, 2): 1})
    assert str(found) == (
        "10 produced, 4 lost, 1 doubled, 0 out of order: "
        "(2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 1, 4), (1, 2, 0)"
    )


class LedgerListMemory(Ledger, ListMemory):
    pass


def test_a_ledger_records_what_a_memory_is_given_and_keeps_it_when_the_memory_drops_it(tmp_path):
    env = NumberedEnv(tmp_path, period_s=0.0)
    observations = [env.reset()[0], *(env.step(None)[0] for _ in range(11))]
    samples = [(np.zeros(1), obs, 0.0, False, False, {}) for obs in observations]
    memory = LedgerListMemory(memory_size=5, batch_size=2)
    memory.append(Buffer(samples[:6], "a"))
    memory.append(Buffer(samples[6:], "a"))
    assert len(memory) < 6
    assert audit(memory.rows(), produced(tmp_path)).exactly_once
    memory.append(Buffer(samples[6:7], "a"))
    assert audit(memory.rows(), produced(tmp_path)).doubled == [(0, 1, 6)]
