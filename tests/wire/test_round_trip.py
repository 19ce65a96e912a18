"""Samples are encoded and decoded bit for bit."""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kit.alike import ALIKE
from kit.packets import TIMING

from tmrl_like.errors import EncodingError
from tmrl_like.replay.crc import first_difference
from tmrl_like.types import ActionSource, StepTiming
from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter

from .samples import (
    SAMPLES,
    columns_of,
    received,
    sent,
    written,
)

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large)  # on a busy machine


def sample(act=0, obs=0, **info):
    return act, obs, 0, 0, 0, info


def back(samples):
    return [tuple(found) for found in received(sent(written(samples))).samples()]


@pytest.mark.parametrize(("first", "second"), ALIKE)
def test_what_is_alike_is_not_mixed_up(first, second):
    samples = [sample(value) for value in (first, second, first, second)]
    assert first_difference(back(samples), samples, "samples") is None


@pytest.mark.parametrize("key", [True, np.str_("1"), (1,), 2**63, "\ud800"])
def test_a_key_that_cannot_travel_is_refused_even_where_an_equal_one_just_did(key):
    writer = PacketWriter()
    for good in ({1: 0}, {"1": 0}):
        writer.append((0, 0, 0, 0, 0, good), TIMING)
        with pytest.raises(EncodingError, match="info has the key"):
            writer.append((0, 0, 0, 0, 0, {key: 0}), TIMING)
    assert writer.samples == 2


Named = namedtuple("Named", "x")


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Named(1),
        Colour.RED,
        OrderedDict(a=1),
        np.ma.masked_array([1.0], [True]),
        np.array([object()]),
        np.longdouble(1),
        np.zeros([1] * 31),
        2**63,
        "\ud800",
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_travel_is_refused_by_name_even_where_one_of_its_kind_just_did(value):
    writer = PacketWriter()
    writer.append(sample(obs=(1, "x"), car={"wheels": [1, 2]}), TIMING)
    for wrong, name in (
        (sample(car={"wheels": [1, value]}), r"info\['car'\]\['wheels'\]\[1\]"),
        (sample(obs=(1, value)), r"obs\[1\]"),
        ((*sample(), value), "original"),
    ):
        with pytest.raises(EncodingError, match="^" + name + " "):
            writer.append(wrong, TIMING)
    assert len(received(sent(writer)).samples()) == writer.samples == 1


def test_a_sample_that_is_a_list_of_numbers_without_end_is_refused():
    with pytest.raises(EncodingError, match="use numpy arrays"):
        PacketWriter().append(sample([0.0] * 20_000), TIMING)


def test_a_sample_whose_structure_does_not_fit_in_the_head_of_a_packet_is_refused():
    with pytest.raises(EncodingError, match="shorter keys"):
        PacketWriter().append(sample(**{f"{key:0300}": 0 for key in range(5000)}), TIMING)


def test_a_sample_nested_too_deeply_is_refused_by_name():
    value = functools.reduce(lambda inner, _: [inner], range(50), 0)
    with pytest.raises(EncodingError, match=r"obs.*nested"):
        PacketWriter().append(sample(obs=value), TIMING)


def test_samples_do_not_share_memory_with_the_packet_or_each_other():
    first, second = back([sample(np.zeros(3))] * 2)
    first[0][:] = 7
    assert not second[0].any()


def test_original_transitions_travel_with_their_samples():
    writer, original = PacketWriter(), (np.zeros(2), (1, "x"))
    writer.append((*sample(a=1), original), TIMING, True, 342)
    (found,) = received(sent(writer)).samples()
    assert first_difference(found.info.original, original, "samples") is None
    assert (found.info, found.info.is_reset, found.info.episode) == ({"a": 1}, True, 42)


def test_timing_comes_back_as_it_was():
    steps = [StepTiming(1e10, 0.25, -0.5, 2**63 - 1, source) for source in ActionSource]
    steps += [StepTiming(0.0, 0.0, 0.0, version) for version in (0, 7)]
    writer = PacketWriter()
    for step in steps:
        writer.append(sample(), step)
    message = sent(writer)
    assert [found.info.timing for found in received(message).samples()] == steps
    packet, _ = m.decode(message)
    assert (packet.observed_at_s, packet.policy_version) == (1e10, 7)


def test_packets_are_compressed_and_compression_pauses_when_it_does_not_pay():
    columns = columns_of(written([sample(np.zeros((64, 64)))] * 20))
    compress, noise = Compressor(), np.random.default_rng(0).bytes(100_000)
    small, is_compressed = compress(columns)
    assert is_compressed
    assert len(small) < len(columns) / 10
    assert compress(noise) == (noise, False)
    for _ in range(Compressor.PAUSE):
        assert compress(columns) == (columns, False)
    assert compress(columns)[1]


def test_long_streams_of_drone_samples_take_few_bytes():
    numbers = np.random.default_rng(0).uniform(-1, 1, (100, 15)).astype(np.float32)
    samples = []
    for row in numbers:
        act, *obs, rew = np.split(row, [2, 3, 4, 5, 6, 8, 10, 12, 14])
        samples.append((act, tuple(obs), rew[0], False, False, {}))
    assert len(sent(written(samples))) < 85 * 100


@settings(max_examples=50, suppress_health_check=SLOW)
@given(
    st.lists(SAMPLES, min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=4),
    st.integers(0, 8),
)
def test_samples_come_back_bit_for_bit_and_in_order_those_behind_a_number(kinds, order, skip):
    samples = kinds + [kinds[i % len(kinds)] for i in order]
    resets = frozenset({0, len(samples) - 1})
    block = received(sent(written(samples, resets)))
    assert len(block) == len(samples)
    assert set(np.flatnonzero(block.is_reset)) == resets
    rest = block.after(skip).samples()
    assert first_difference([tuple(s) for s in rest], samples[skip:], "samples") is None
    assert [s.info.is_reset for s in rest] == [i in resets for i in range(skip, len(samples))]
