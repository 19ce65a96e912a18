"""Observations made from a frame, compared with a computation pixel by pixel."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.refusals import one_line

from tmrl_like.envs.vision import History, RangeFinder, Shrink

ANGLES = np.linspace(-90, 90, 19)


def measured_by_hand(road, row, column, angle, max_range):
    """Look at one pixel after another; there is no road around the picture."""
    road = np.pad(road, 64)
    for pixels in range(int(max_range) + 1):
        y = math.floor(row - math.cos(math.radians(angle)) * pixels + 0.5)
        x = math.floor(column + math.sin(math.radians(angle)) * pixels + 0.5)
        if not road[y + 64, x + 64]:
            return np.float32(pixels)
    return np.float32(max_range)


@given(
    shape=st.tuples(st.integers(2, 40), st.integers(2, 40)),
    max_range=st.floats(1.0, 60.0),
    seed=st.integers(0, 2**32 - 1),
)
def test_rays_are_those_of_a_loop_over_pixels(shape, max_range, seed):
    random = np.random.default_rng(seed)
    road, (row, column) = random.random(shape) < 0.9, random.uniform(0.0, shape)
    ranges = RangeFinder(shape, (row, column), ANGLES, max_range)(road)
    assert ranges.dtype == np.float32
    expected = [measured_by_hand(road, row, column, angle, max_range) for angle in ANGLES]
    assert ranges.tolist() == expected


def test_a_range_finder_outside_its_picture_is_refused():
    with one_line(r"origin of a range finder is \(9, 0\)"):
        RangeFinder((9, 9), (9, 0), [0], 5)


@pytest.mark.parametrize(
    ("grey", "shape", "colour"),
    [(True, (32, 48), 0.299 * 30 + 0.587 * 60 + 0.114 * 90), (False, (32, 48, 3), (30, 60, 90))],
)
def test_a_frame_is_cropped_and_made_smaller(grey, shape, colour):
    frame = np.zeros((96, 96, 3), np.uint8)
    frame[:84] = (30, 60, 90)
    picture = Shrink((32, 48), (0, 84, 6, 90), grey)(frame)
    assert (picture.dtype, picture.shape) == (np.uint8, shape)
    assert (picture == np.round(colour)).all()


def test_a_picture_is_a_copy_even_where_nothing_changes():
    frame = np.zeros((8, 8, 3), np.uint8)
    picture = Shrink((8, 8), grey=False)(frame)
    frame[:] = 1
    assert not picture.any()


@pytest.mark.parametrize(
    ("size", "expected"), [((0, 5), "1 to 4096"), ((64, 5000), "1 to 4096"), ((64,), "2 numbers")]
)
def test_a_picture_without_pixels_or_of_too_many_is_refused(size, expected):
    with one_line(f"size is .*; expected {expected}"):
        Shrink(size)


def test_a_history_ends_with_the_newest_and_begins_with_copies_of_the_first():
    history = History(3)
    seen = [history(np.array([value]))[:, 0].tolist() for value in (1, 2, 3, 4)]
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    history.clear()
    assert history(np.array([5]))[:, 0].tolist() == [5, 5, 5]


def test_a_history_keeps_what_an_array_held_that_is_used_again():
    history, picture = History(2), np.zeros(1)
    history(picture)
    picture[:] = 7
    assert history(picture)[:, 0].tolist() == [0, 7]
