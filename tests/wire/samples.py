"""Hypothesis strategies for everything that a sample may contain, and packets made of samples."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kit.packets import TIMING, header

from tmrl_like.wire import messages as m
from tmrl_like.wire.packet import Compressor, PacketWriter, columns_in, decode_body

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def arrays(draw):
    """Draw an array with any bits, such as NaNs with payloads and subnormals."""
    dtype, shape = draw(DTYPES), draw(SHAPES)
    if dtype.kind == "b":
        return draw(hnp.arrays(dtype, shape))
    size = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return np.asfortranarray(array) if draw(st.booleans()) and array.ndim else array.copy()


def quiet(value):
    """Return a value as it is packed: a signalling NaN in float32 becomes quiet, as when C converts
    a float to a double.
    """
    return np.float32(float(value)) if type(value) is np.float32 else value


SCALARS = arrays().filter(lambda a: a.size > 0).map(lambda a: quiet(a.reshape(-1)[0]))
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=6),
    st.binary(max_size=6),
)
KEYS = st.one_of(st.text(max_size=4), st.integers(-(2**63), 2**63 - 1))
VALUES = st.recursive(
    st.one_of(arrays(), SCALARS, PLAIN),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=8,
)
SAMPLES = st.tuples(
    VALUES, VALUES, VALUES, VALUES, VALUES, st.dictionaries(st.text(max_size=4), VALUES, max_size=2)
)
NUMBERS = {"worker": "w", "incarnation": 1, "first": 1, "last": 1, "oldest": 1, "breaks": 0}


def written(samples, resets=frozenset()):
    """Return a writer to which these samples were appended."""
    writer = PacketWriter()
    for i, sample in enumerate(samples):
        writer.append(sample, TIMING, i in resets)
    return writer


def sent(writer, compress=None):
    """Return the message with a writer's samples."""
    return writer.message(compress or Compressor(), **NUMBERS)


def columns_of(writer):
    """Return the columns of a packet with a writer's samples, uncompressed."""
    message = sent(writer, lambda columns: (columns, False))
    return bytes(columns_in(message, m.decode(message)[1]))


def received(message):
    """Return the decoded samples of a message."""
    packet, body = m.decode(message)
    return decode_body(packet, columns_in(message, body))


def announce(body, samples, raw_bytes=None):
    """Return the header that fits these columns. `raw_bytes`: size before compression; None:
    uncompressed.
    """
    size = len(body) if raw_bytes is None else raw_bytes
    return header(1, samples, body_bytes=size, compressed=raw_bytes is not None)
