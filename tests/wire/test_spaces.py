"""Spaces as plain data, and the message about two that differ."""

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.errors import PolicyError
from tmrl_like.wire.spaces import SpaceSpec, describe_spaces, make_space, spec_of

BOUNDS = np.array([-np.inf, 0.1], np.float32), np.array([1.1, np.inf], np.float32)
SPACES = [
    spaces.Box(*BOUNDS),
    spaces.Box(0, 1, (3,), np.bool_),
    spaces.Box(-1.0, 1.0, (), np.float64),
    spaces.Box(np.int64(-(2**62)), np.int64(2**62 + 1), (2,), np.int64),
    spaces.Discrete(3, start=-1),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
    spaces.MultiBinary((2, 3)),
    spaces.Tuple((spaces.Discrete(2), spaces.Tuple(()))),
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
    with pytest.raises(
        PolicyError, match=r"the space Text\(.* is of a kind that a policy file does not know"
    ):
        spec_of(spaces.Tuple((spaces.Text(5),)))


@pytest.mark.parametrize(
    "text",
    [
        b'{"space":"box","shape":[100000,100000],"dtype":"float32","low":[0],"high":[1]}',
        b'{"space":"box","shape":[3],"dtype":"float32","low":[0,1],"high":[1]}',
        b'{"space":"box","shape":[1],"dtype":"O","low":[0],"high":[1]}',
        b'{"space":"box","shape":[1],"dtype":"float32","low":["a"],"high":[1]}',
        b'{"space":"multibinary","n":[100000,100000]}',
        b'{"space":"tuple","spaces":[%s]}'
        % b",".join([b'{"space":"multibinary","n":8388608}'] * 3),
        b'{"space":"text"}',
    ],
)
def test_a_text_that_is_no_space_is_refused(text):
    with pytest.raises(ValueError):
        make_space(msgspec.json.decode(text, type=SpaceSpec))


ACTIONS = spaces.Discrete(3)


def described(*leaves):
    return describe_spaces(spaces.Tuple(leaves), ACTIONS)


def test_two_spaces_differ_in_a_leaf_that_is_named_with_its_bounds():
    speed, arm = spaces.Box(0.0, 10.0, (1,)), spaces.Box(-1.0, np.float32([1, 2]))
    longer = spaces.Box(-1.0, np.float32([1, 2.5]))
    assert described(speed, arm).difference(described(speed, longer)) == (
        "observation",
        "[1] Box(-1.0, [1.0, 2.0], (2,), float32)",
        "[1] Box(-1.0, [1.0, 2.5], (2,), float32)",
    )
    assert described(speed).difference(described(speed, arm))[1] == "without this part"
    other = describe_spaces(spaces.Tuple([speed]), spaces.Discrete(4))
    assert described(speed).difference(other) == ("action", "Discrete(3)", "Discrete(4)")


def test_many_bounds_are_a_range_and_a_hash_and_many_leaves_end_with_one():
    low = np.linspace(-1.0, 0.0, 64, dtype=np.float32)
    one, other = described(spaces.Box(low, 1.0)), described(spaces.Box(low**3, 1.0))
    assert one.observation.startswith("[0] Box(-1.0 to 0.0 #")
    assert one != other
    crowds = [described(*[spaces.Box(-1.0, 1.0, (1,))] * 200, spaces.Discrete(n)) for n in (2, 3)]
    assert len(crowds[0].observation) < 3100
    assert crowds[0] != crowds[1]


def test_no_difference_is_too_small_to_be_seen():
    most = np.float32(1.0)
    wider = np.nextafter(most, np.float32(2.0))
    assert described(spaces.Box(-1.0, most, (1,))) != described(spaces.Box(-1.0, wider, (1,)))
