import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.alike import ALIKE

from tmrl_like.errors import PipelineMismatchError
from tmrl_like.replay.crc import check_transition

ACT = np.zeros(2, np.float32)


def transition(obs):
    return (obs, ACT, 0.0, obs, False, False)


def test_arrays_that_differ_only_in_the_middle_are_found_and_the_message_says_all():
    big = np.zeros((100, 200), np.float32)
    other = big.copy()
    other[50, 100] = 0.25
    with pytest.raises(PipelineMismatchError) as error:
        check_transition(transition((1, big)), transition((1, other)))
    for said in (
        *("last_obs[1] at element (50, 100)", "1 of 20000 elements", "0.25"),
        *("sample_compressor", "samples that it made (run --fresh"),
    ):
        assert said in str(error.value)


@pytest.mark.parametrize(("produced", "rebuilt"), [*ALIKE, ("a", "b")])
def test_what_is_equal_only_by_value_is_distinguished(produced, rebuilt):
    with pytest.raises(PipelineMismatchError):
        check_transition(transition((produced,)), transition((rebuilt,)))


def test_equal_nans_are_equal():
    obs = (float("nan"), {"x": [np.float32("nan")]}, None, "text")
    check_transition(transition(obs), transition(obs))


@settings(max_examples=50)
@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0)), st.data())
def test_every_array_equals_its_copy_and_differs_when_one_byte_does(array, data):
    check_transition(transition(array), transition(array.copy()))
    changed = bytearray(array.tobytes())
    position = data.draw(st.integers(0, len(changed) - 1))
    changed[position] ^= 1
    other = np.frombuffer(bytes(changed), array.dtype).reshape(array.shape)
    with pytest.raises(PipelineMismatchError):
        check_transition(transition(array), transition(other))


def test_the_older_observation_of_a_reset_is_not_compared():
    check_transition((None, *transition(1)[1:]), transition(1))
