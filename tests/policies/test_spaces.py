"""Spaces as plain data."""

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.errors import PolicyError
from tmrl_like.policies.spaces import SpaceSpec, make_space, spec_of

BOUNDS = np.array([-np.inf, 0.1], np.float32), np.array([1.1, np.inf], np.float32)
SPACES = [
    spaces.Box(*BOUNDS),
    spaces.Box(0, 255, (84, 84, 3), np.uint8),
    spaces.Box(-1.0, 1.0, (), np.float64),
    spaces.Box(-1.0, 1.0, (0,)),
    spaces.Box(np.int64(-(2**62)), np.int64(2**62 + 1), (2,), np.int64),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
    spaces.MultiDiscrete([3]),
    spaces.MultiBinary((2, 3)),
    spaces.Tuple((spaces.Discrete(2), spaces.Tuple((spaces.Box(*BOUNDS),)))),
    spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Dict({"c": spaces.MultiBinary(2)}))]),
]


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_a_space_that_was_written_as_text_is_the_same_again(space):
    again = make_space(msgspec.json.decode(msgspec.json.encode(spec_of(space)), type=SpaceSpec))
    assert again == space
    assert str(again) == str(space)
    for part in (again, space):
        part.seed(3)
    assert again.contains(space.sample())


def test_a_space_of_a_kind_that_is_not_known_is_refused_by_name():
    with pytest.raises(PolicyError, match=r"the space Text\(.* is of a kind that a policy file does not know"):
        spec_of(spaces.Tuple((spaces.Text(5),)))


@pytest.mark.parametrize(
    "text",
    [
        b'{"space":"box","shape":[100000,100000],"dtype":"float32","low":[0],"high":[1]}',
        b'{"space":"box","shape":[3],"dtype":"float32","low":[0,1],"high":[1]}',
        b'{"space":"box","shape":[1],"dtype":"O","low":[0],"high":[1]}',
        b'{"space":"box","shape":[1],"dtype":"float32","low":["a"],"high":[1]}',
        b'{"space":"multibinary","n":[100000,100000]}',
        b'{"space":"text"}',
    ],
)
def test_a_text_that_is_no_space_is_refused(text):
    with pytest.raises(ValueError):
        make_space(msgspec.json.decode(text, type=SpaceSpec))
