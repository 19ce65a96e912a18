import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tmrl_like.errors import DecodingError, OversizeError
from tmrl_like.transport.frames import PIECE_BYTES, Assembler, Piece, cut, pieces_of

LIMIT = 8 * PIECE_BYTES
SIZES = st.one_of(st.integers(0, LIMIT), st.sampled_from([0, 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, LIMIT]))


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=4))
def test_what_was_cut_comes_together_again(sizes: list[int]) -> None:
    assembler = Assembler(LIMIT)
    for number, size in enumerate(sizes):
        data = bytes([number + 1]) * size
        pieces = list(cut(number, data))
        assert len(pieces) == pieces_of(size)
        assert max(map(len, pieces)) <= 256 * 1024
        results = [assembler.add(piece) for piece in pieces]
        assert results[:-1] == [None] * (len(pieces) - 1)
        assert results[-1] == data


def piece(message: int = 1, index: int = 0, count: int = 1, total: int = 5, data: bytes = b"12345") -> bytes:
    return msgspec.msgpack.encode(Piece(message, index, count, total, memoryview(data)))


@pytest.mark.parametrize(
    "wrong",
    [
        piece(index=1),
        piece(count=2),
        piece(count=0),
        piece(total=6),
        piece(data=b"1234"),
        piece(data=b"123456"),
        piece(count=2**40, total=PIECE_BYTES * 2**40, data=bytes(PIECE_BYTES)),
        b"",
        b"\x96\x01\x01",
    ],
)
def test_a_piece_that_cannot_be_is_refused(wrong: bytes) -> None:
    with pytest.raises(DecodingError):
        Assembler(LIMIT).add(wrong)


def test_a_message_above_the_limit_is_refused_with_its_first_piece() -> None:
    with pytest.raises(OversizeError, match="at most"):
        Assembler(LIMIT).add(next(cut(1, bytes(LIMIT + 1))))


def test_pieces_must_follow_each_other() -> None:
    pieces, others = list(cut(1, bytes(3 * PIECE_BYTES))), list(cut(2, bytes(3 * PIECE_BYTES)))
    for second in (pieces[0], pieces[2], others[1], others[0]):
        assembler = Assembler(LIMIT)
        assembler.add(pieces[0])
        with pytest.raises(DecodingError, match="does not follow"):
            assembler.add(second)
