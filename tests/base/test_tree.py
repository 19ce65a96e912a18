"""Functions over nested values."""

import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree


def test_the_outline_of_many_parts_is_short():
    text = tree.outline({"lidar": ([0.5] * 100_000, np.zeros(3))})
    assert text.startswith("{'lidar': tuple of list of float 0.5, float 0.5, ")
    assert text.endswith("…")
    assert len(text) == 500


def test_a_space_leads_a_value_of_other_containers_and_order():
    space = spaces.Dict(
        {"a": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), "b": spaces.Discrete(4)}
    )
    assert tree.map_leaves(lambda s, v: s.n * v, space, {"b": 5, "a": [6, 7]}) == {
        "a": (12, 21),
        "b": 20,
    }
