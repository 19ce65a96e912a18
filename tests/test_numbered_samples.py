"""The audit of numbered samples alone, without a pipeline."""

import numpy as np
import pytest
from numbered_samples import Audit, audit


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
    assert audit(np.array(of_one(*recorded)).reshape(-1, 3), {(1, 1): count}) == found
    assert found.exactly_once == (recorded == tuple(range(count)))
