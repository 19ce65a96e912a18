"""Values that are alike without being the same."""

import numpy as np

# pairs that differ in type, dtype, byte order, shape, structure, order or sign alone
ALIKE = [
    (1, True),
    (1.0, np.float64(1)),
    (np.float32(1), np.float64(1)),
    (np.float64(1), np.array(1.0)),
    (np.zeros(2, "<f4"), np.zeros(2, ">f4")),
    (np.zeros(2), np.zeros((2, 1))),
    ((1, 2), [1, 2]),
    ((1, 2), (1, 2, 3)),
    ({1: 0}, {"1": 0}),
    ({"a": 0, "b": 1}, {"b": 1, "a": 0}),
    ("1", b"1"),
    (0.0, -0.0),
]
