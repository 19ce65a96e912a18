"""Turns frames into what an agent sees: smaller pictures, or distances to the road's edge."""

from __future__ import annotations

from collections import deque
from typing import Annotated, Any

import numpy as np
from gymnasium import spaces
from msgspec import Meta
from numpy.typing import NDArray

from tmrl_like.base.options import in_ranges
from tmrl_like.errors import MissingExtraError, expect

Frame = NDArray[np.uint8]  # [H, W, 3]

_Pixels = Annotated[int, Meta(ge=1, le=4096)]


class Shrink:
    """Crops a frame, shrinks it, and makes it grey unless colour is wanted.

    Attributes:
        shape: shape of the result: (height, width), or (height, width, 3) in colour.
        dtype: type of the result.
        full: largest value of the result.
    """

    dtype, full = np.uint8, 255

    @in_ranges
    def __init__(
        self,
        size: tuple[_Pixels, _Pixels] = (64, 64),
        crop: tuple[int, int, int, int] | None = None,
        grey: bool = True,
    ) -> None:
        """Load OpenCV and set up the conversion.

        Args:
            size: height and width of the result in pixels.
            crop: first row, row after the last, first column, column after the last; None keeps
                everything.
            grey: one value per pixel instead of three.

        Raises:
            MissingExtraError: OpenCV cannot be loaded.
            ConfigError: the height or width is not 1 to 4096 pixels.
        """
        height, width = size
        top, bottom, left, right = crop or (0, None, 0, None)
        self._cv2 = load_opencv()
        self._crop = (slice(top, bottom), slice(left, right))
        self._size, self._grey = (width, height), grey
        self.shape = (height, width) if grey else (height, width, 3)

    def __call__(self, frame: Frame) -> NDArray[np.uint8]:
        """Convert a frame, uint8 [H, W, 3] RGB, to uint8 [height, width] or [height, width, 3]."""
        image = frame[self._crop]
        if self._grey:
            image = self._cv2.cvtColor(image, self._cv2.COLOR_RGB2GRAY)
        small: NDArray[np.uint8] = self._cv2.resize(
            image, self._size, interpolation=self._cv2.INTER_AREA
        )
        return small


class History:
    """A stack of the newest arrays, newest last; the first array fills the whole stack."""

    def __init__(self, length: int) -> None:
        """Begin empty; the stack holds `length` arrays."""
        self.length = length
        self._arrays: deque[NDArray[Any]] = deque(maxlen=length)

    def space(self, view: Any) -> spaces.Box:
        """Return the space of stacks of what a view returns, by its `shape`, `dtype` and `full`."""
        return spaces.Box(0, view.full, (self.length, *view.shape), view.dtype)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """Append a copy of an array, and return the stack, [length, *array.shape]."""
        self._arrays.extend([np.array(array)] * (1 if self._arrays else self.length))
        return np.stack(self._arrays)

    def clear(self) -> None:
        """Empty the stack; the next array is the first."""
        self._arrays.clear()


class RangeFinder:
    """Measures how far the road extends in several directions.

    A ray advances in steps of a pixel from `origin` until it meets a pixel that is not road, leaves
    the picture, or reaches `max_range`.
    """

    def __init__(
        self, shape: tuple[int, int], origin: tuple[float, float], angles: Any, max_range: float
    ) -> None:
        """Compute which pixels each ray meets.

        Args:
            shape: height and width of the pictures.
            origin: row and column where the rays begin.
            angles: directions of the rays in degrees, [R]; 0 is up, 90 is to the right.
            max_range: longest range, in pixels.

        Raises:
            ConfigError: the origin is not in the picture.
        """
        height, width = shape
        directions = np.deg2rad(np.asarray(angles, np.float64)).reshape(-1, 1)
        is_inside = 0 <= origin[0] < height and 0 <= origin[1] < width
        expect(
            is_inside,
            "the origin of a range finder",
            origin,
            f"a row and a column of a picture {tuple(shape)}",
        )
        way = np.arange(int(max_range) + 2)  # the last step is beyond the range
        rows = np.floor(origin[0] - np.cos(directions) * way + 0.5).astype(np.intp)
        columns = np.floor(origin[1] + np.sin(directions) * way + 0.5).astype(np.intp)
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        inside[:, -1] = False
        self._outside = height * width  # the pixel after the last is never road
        self._pixels = np.where(inside, rows * width + columns, self._outside)
        self._road = np.zeros(height * width + 1, np.bool_)
        self._max_range = np.float32(max_range)

    def __call__(self, road: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the number of road pixels along each ray, float32 [R], 0 to `max_range`.

        `road` [H, W] is True where a pixel is road.
        """
        self._road[: self._outside] = road.reshape(-1)
        pixels: NDArray[np.float32] = self._road[self._pixels].argmin(axis=1).astype(np.float32)
        return np.minimum(pixels, self._max_range, out=pixels)


def load_opencv() -> Any:
    """Return OpenCV's module; raise MissingExtraError if it cannot be loaded."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(f"pictures need opencv-python: {error}") from None
    return cv2
