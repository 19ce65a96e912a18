"""What an agent sees of a frame: a smaller picture, or distances to the road's edge."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tmrl_like.errors import ConfigError, MissingExtraError

Frame = NDArray[np.uint8]  # [H, W, 3]

_LARGEST_PX = 4096


class Shrink:
    """Crops a frame, makes it smaller and, unless colour is wanted, grey.

    Attributes:
        shape: of what it returns: (height, width), in colour (height, width, 3).
    """

    def __init__(
        self, size: tuple[int, int] = (64, 64), crop: tuple[int, int, int, int] | None = None, grey: bool = True
    ) -> None:
        """Prepare.

        Args:
            size: height and width in pixels.
            crop: first row, row after the last, first column, column after the last; None keeps everything.
            grey: one value per pixel instead of three.

        Raises:
            MissingExtraError: OpenCV cannot be loaded.
            ConfigError: a size or a crop without pixels.
        """
        height, width = size
        top, bottom, left, right = crop or (0, None, 0, None)
        if height < 1 or width < 1 or (crop and not (0 <= top < crop[1] and 0 <= left < crop[3])):
            cut = f" cut out at crop {tuple(crop)}" if crop else ""
            raise ConfigError(f"a picture of size {tuple(size)}{cut} has no pixels")
        if max(size) > _LARGEST_PX:
            raise ConfigError(f"a picture of size {tuple(size)} is too large; expected {_LARGEST_PX} or less each way")
        self._cv2 = load_opencv()
        self._crop = (slice(top, bottom), slice(left, right))
        self._size, self._grey = (width, height), grey
        self.shape = (height, width) if grey else (height, width, 3)

    def __call__(self, frame: Frame) -> NDArray[np.uint8]:
        """A frame, uint8 [H, W, 3] in RGB, becomes uint8 [height, width] or [height, width, 3]."""
        image = frame[self._crop]
        if self._grey:
            image = self._cv2.cvtColor(image, self._cv2.COLOR_RGB2GRAY)
        if image.shape[:2] == self._size[::-1]:
            return np.array(image)
        small: NDArray[np.uint8] = self._cv2.resize(image, self._size, interpolation=self._cv2.INTER_AREA)
        return small


class History:
    """The newest arrays, stacked, newest last. The first one stands for those before it, too."""

    def __init__(self, length: int) -> None:
        """Begin without any; `length` arrays are kept."""
        self.length = length
        self._arrays: deque[NDArray[Any]] = deque(maxlen=length)

    def __call__(self, array: NDArray[Any]) -> NDArray[Any]:
        """Append an array; returns [length, *array.shape]."""
        self._arrays.extend([array] * (1 if self._arrays else self.length))
        return np.stack(self._arrays)

    def clear(self) -> None:
        """Begin again: the next array is the first."""
        self._arrays.clear()


def stack_of(item: int, length: int) -> dict[int, int] | int:
    """What a memory is told (`frame_stack`) of observations whose item is a `History` of so many."""
    return {item: length} if length > 1 else 0


class RangeFinder:
    """Measures how far the road goes in several directions.

    A ray goes in steps of a pixel from `origin` to the first pixel that is not road, or to the edge of the
    picture, or as far as `max_range`.
    """

    def __init__(self, shape: tuple[int, int], origin: tuple[float, float], angles: Any, max_range: float) -> None:
        """Work out which pixels each ray meets.

        Args:
            shape: height and width of the pictures.
            origin: row and column where the rays begin.
            angles: in degrees; 0 is up, 90 to the right. [R]
            max_range: in pixels.

        Raises:
            ConfigError: the origin is not in the picture, or there is nothing to measure.
        """
        height, width = shape
        directions = np.deg2rad(np.asarray(angles, np.float64)).reshape(-1, 1)
        if not (0 <= origin[0] < height and 0 <= origin[1] < width) or directions.size == 0 or max_range < 1:
            raise ConfigError(
                f"a range finder needs an origin in the picture {tuple(shape)}, an angle and a range of a pixel or "
                f"more, not {tuple(origin)}, {directions.size} angles, {max_range:g}"
            )
        way = np.arange(int(max_range) + 1)
        rows = np.floor(origin[0] - np.cos(directions) * way + 0.5).astype(np.intp)
        columns = np.floor(origin[1] + np.sin(directions) * way + 0.5).astype(np.intp)
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        self._outside = height * width  # the pixel after the last is never road
        self._pixels = np.where(inside, rows * width + columns, self._outside)
        self._pixels = np.concatenate([self._pixels, np.full((len(directions), 1), self._outside)], axis=1)
        self._road = np.zeros(height * width + 1, np.bool_)
        self._max_range = np.float32(max_range)

    def __call__(self, road: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Pixels of road along each ray, float32 [R], 0 to `max_range`; `road` [H, W] says which pixels are road."""
        self._road[: self._outside] = road.reshape(-1)
        pixels: NDArray[np.float32] = self._road[self._pixels].argmin(axis=1).astype(np.float32)
        return np.minimum(pixels, self._max_range, out=pixels)


def load_opencv() -> Any:
    """OpenCV's module; raises MissingExtraError where it cannot be loaded."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(f"pictures need opencv-python: {error}") from None
    return cv2
