"""Observations made from a frame, compared with a computation pixel by pixel."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tmrl_like.envs.vision import History, RangeFinder, Shrink
from tmrl_like.errors import ConfigError

ANGLES = np.linspace(-90, 90, 19)


def measured_by_hand(road, origin, angle, max_range):
    for pixels in range(int(max_range) + 1):
        row = math.floor(origin[0] - math.cos(math.radians(angle)) * pixels + 0.5)
        column = math.floor(origin[1] + math.sin(math.radians(angle)) * pixels + 0.5)
        if not (0 <= row < road.shape[0] and 0 <= column < road.shape[1] and road[row, column]):
            return pixels
    return max_range


@given(
    st.tuples(st.integers(2, 40), st.integers(2, 40)),
    st.tuples(st.floats(0.0, 1.0, exclude_max=True), st.floats(0.0, 1.0, exclude_max=True)),
    st.floats(1.0, 60.0),
    st.integers(0, 2**32 - 1),
)
def test_rays_are_those_of_a_loop_over_pixels(shape, origin, max_range, seed):
    road = np.random.default_rng(seed).random(shape) < 0.9
    origin = (origin[0] * shape[0], origin[1] * shape[1])
    ranges = RangeFinder(shape, origin, ANGLES, max_range)(road)
    assert ranges.dtype == np.float32
    assert ranges.shape == (19,)
    for angle, measured in zip(ANGLES, ranges, strict=True):
        assert measured == np.float32(measured_by_hand(road, origin, angle, max_range))


def test_a_range_finder_outside_its_picture_is_refused():
    with pytest.raises(ConfigError, match=r"origin of a range finder is \(9, 0\)"):
        RangeFinder((9, 9), (9, 0), [0], 5)


@pytest.mark.parametrize("grey", [True, False])
def test_a_frame_is_cropped_and_made_smaller(grey):
    frame = np.zeros((96, 96, 3), np.uint8)
    frame[:84] = (30, 60, 90)
    shrink = Shrink((32, 48), (0, 84, 6, 90), grey)
    picture = shrink(frame)
    assert picture.dtype == np.uint8
    assert picture.shape == shrink.shape == ((32, 48) if grey else (32, 48, 3))
    colour = round(0.299 * 30 + 0.587 * 60 + 0.114 * 90) if grey else (30, 60, 90)
    assert (picture == np.array(colour)).all()


def test_a_picture_is_a_copy_even_where_nothing_changes():
    frame = np.zeros((8, 8, 3), np.uint8)
    picture = Shrink((8, 8), grey=False)(frame)
    frame[:] = 1
    assert not picture.any()


@pytest.mark.parametrize(
    ("size", "expected"), [((0, 5), "1 to 4096"), ((64, 5000), "1 to 4096"), ((64,), "2 numbers")]
)
def test_a_picture_without_pixels_or_of_too_many_is_refused(size, expected):
    with pytest.raises(ConfigError, match=f"size is .*; expected {expected}"):
        Shrink(size)


def test_a_history_ends_with_the_newest_and_begins_with_copies_of_the_first():
    history = History(3)
    seen = [history(np.array([value]))[:, 0].tolist() for value in (1, 2, 3, 4)]
    assert seen == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [2, 3, 4]]
    history.clear()
    assert history(np.array([5]))[:, 0].tolist() == [5, 5, 5]
