from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tmrl_like.errors import DecodingError, EncodingError
from tmrl_like.memories.crc import check_transition
from tmrl_like.memories.state import _to_timing, decode, encode
from tmrl_like.types import ActionSource, Info, Sample, StepTiming

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=4) | st.integers(-5, 5), inner, max_size=4)
        | st.lists(inner, min_size=1, max_size=3).map(lambda items: items * 20)
    ),
    max_leaves=8,
)


def same(one, other):
    check_transition((one, 0, 0, 0, 0, 0), (other, 0, 0, 0, 0, 0))


@given(values)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_goes_in_comes_out(value):
    if value is not None:
        same(value, decode(encode(value)))


def info(k):
    timing = StepTiming(1.0 + k, 0.1, -0.1, k, ActionSource(k % 3)) if k % 2 else None
    return Info({"speed": k}, is_reset=k % 3 == 0, is_context=k % 5 == 0, timing=timing, original=(None, k, np.ones(2)))


@pytest.mark.parametrize("count", [3, 500])
def test_infos_and_samples_keep_type_and_attributes(count):
    samples = [Sample(np.float32(k), (np.ones(k % 2),), 0.5, True, False, info(k)) for k in range(count)]
    for one, other in zip(samples, decode(encode(samples)), strict=True):
        assert type(other) is Sample
        assert type(other.info) is Info
        assert dict(other.info) == dict(one.info)
        assert (other.info.is_reset, other.info.is_context) == (one.info.is_reset, one.info.is_context)
        assert type(other.info.timing) is type(one.info.timing)
        assert other.info.timing == one.info.timing
        assert one.info.timing is None or type(other.info.timing.source) is ActionSource
        same(one.info.original, other.info.original)
        same(tuple(one[:5]), tuple(other[:5]))


def test_timing_that_was_saved_before_it_had_a_source_is_the_policys():
    assert _to_timing(1.0, 0.1, 0.0, 3) == StepTiming(1.0, 0.1, 0.0, 3, ActionSource.POLICY)
    same(decode(encode([StepTiming(1.0, 0.1, 0.0, 3)])), [StepTiming(1.0, 0.1, 0.0, 3)])


def test_lists_of_changing_structure_keep_their_order():
    items = [k if k % 2 else float(k) if k % 3 else f"{k}" for k in range(1000)]
    same(items, decode(encode(items)))


def test_deques_keep_their_bound():
    value = decode(encode(deque(range(100), maxlen=200)))
    assert value == deque(range(100))
    assert value.maxlen == 200


def test_lists_of_episodes_are_kept():
    same([[float(k) for k in range(400)] for _ in range(40)], decode(encode([[float(k) for k in range(400)]] * 40)))


def test_restored_arrays_can_be_written():
    array, row = decode(encode([np.zeros(3), [np.zeros(2)] * 50]))
    array[0] = row[0][0] = 1
    assert row[1][0] == 0


def test_what_cannot_be_stored_is_refused_by_name():
    with pytest.raises(EncodingError, match=r"state\[1\].*object"):
        encode([0, object()])
    with pytest.raises(EncodingError, match=r"state\[40\]"):
        encode([0.0] * 40 + [object()])


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_damaged_bytes_are_refused(data):
    whole = encode([np.arange(5), [1.5] * 50, {"a": None}])
    if data.draw(st.booleans()):
        damaged = bytearray(whole)
        damaged[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(DecodingError):
        decode(bytes(damaged))
