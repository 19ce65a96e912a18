"""Numbered samples and their audit alone, without a pipeline."""

import numpy as np
import pytest
from kit.fakes import ListMemory
from numbered_samples import Ledger, NumberedEnv, audit, produced

from tmrl_like.types import Buffer


def rows(*numbers, worker=1, incarnation=1):
    return np.array([[worker, incarnation, number] for number in numbers], np.float32).reshape(
        -1, 3
    )


@pytest.mark.parametrize(
    ("numbers", "count", "expected"),
    [
        ((0, 1, 2), 3, (3, [], 0, [], [])),
        ((0, 2), 4, (4, [1, 3], 1, [], [])),
        ((0, 1, 1, 2), 3, (3, [], 0, [1], [])),
        ((0, 2, 1), 3, (3, [], 0, [], [1])),
        ((), 2, (2, [0, 1], 2, [], [])),
        ((0, 1, 2), 2, (3, [], 0, [], [])),
    ],
)
def test_an_audit_finds_what_is_lost_doubled_and_out_of_order(numbers, count, expected):
    found = audit(rows(*numbers), {(1, 1): count})
    of = {
        name: [row[2] for row in getattr(found, name)]
        for name in ("lost", "doubled", "out_of_order")
    }
    assert (
        found.produced,
        of["lost"],
        found.lost_at_end,
        of["doubled"],
        of["out_of_order"],
    ) == expected
    assert found.exactly_once == (expected[1:] == ([], 0, [], []))


def test_an_audit_keeps_workers_and_incarnations_apart_and_says_what_is_wrong():
    held = np.concatenate([rows(0, 1), rows(0, 5, 6, worker=2), rows(0, 0, incarnation=2)])
    found = audit(held, {(1, 1): 2, (2, 1): 7, (1, 2): 1})
    assert str(found) == (
        "10 produced, 4 lost (0 of them last), 1 doubled, 0 out of order: "
        "(2, 1, 1), (2, 1, 2), (2, 1, 3), (2, 1, 4), (1, 2, 0)"
    )


class LedgerListMemory(Ledger, ListMemory):
    pass


def twelve_samples(tally):
    env = NumberedEnv(tally, period_s=0.0, ballast_bytes=10)
    act = env.action_space.sample()
    return [(act, env.reset()[0], 0.0, False, False, {})] + [
        (act, *env.step(act)[:4], {}) for _ in range(11)
    ]


def test_a_ledger_records_what_a_memory_is_given_and_keeps_it_when_the_memory_drops_it(tmp_path):
    samples = twelve_samples(tmp_path)
    memory = LedgerListMemory(memory_size=5, batch_size=2)
    memory.append(Buffer(samples[:6], "a"))
    memory.append(Buffer(samples[6:], "a"))
    assert len(memory) < 6
    assert audit(memory.rows(), produced(tmp_path)).exactly_once
    memory.append(Buffer(samples[6:7], "a"))
    assert audit(memory.rows(), produced(tmp_path)).doubled == [(0, 1, 6)]
