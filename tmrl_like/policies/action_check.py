"""Checks of actions before they are sent to an environment."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.types import Action
from tmrl_like.wire.spaces import Space

_SHORT = 40  # numbers; for more, a dot product is faster
_ROUNDING = 1e-5  # of an action's size, and at least that much


def is_finite(value: object) -> bool:
    """Whether no number in an action, or an observation, is NaN or infinite. `finite_check` is
    faster for a known space.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fc":
            return True
        return math.isfinite(np.vdot(value, value).real) or bool(np.isfinite(value).all())
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    if isinstance(value, tuple | list):  # as in the control loop: three times as fast as a walk
        return all(map(is_finite, value))
    return all(map(is_finite, value.values())) if isinstance(value, dict) else True


def finite_check(space: Space) -> Callable[[Action], bool]:
    """Return `is_finite`, or a check that is several times as fast if the space is a short vector
    or a Tuple of these, as most are.
    """
    is_tuple = isinstance(space, spaces.Tuple)
    for part in space.spaces if isinstance(space, spaces.Tuple) else (space,):
        if not (isinstance(part, spaces.Box) and len(part.shape) == 1 and part.shape[0] <= _SHORT):
            return is_finite
    numbers_of, numbers_in = np.ndarray.tolist, itertools.chain.from_iterable

    def check(value: Action) -> bool:
        try:  # nan and inf survive a sum
            total = sum(numbers_in(map(numbers_of, value))) if is_tuple else sum(numbers_of(value))
            return math.isfinite(total) or is_finite(value)
        except TypeError:  # the value does not match the space
            return is_finite(value)

    return check


def action_problem(action: Action, space: Space) -> str:
    """Return why an action is not in a space, or an empty string if it is. Rounding may take it
    beyond the bounds of a Box.
    """
    return next(
        filter(None, (_leaf_problem(part, of) for _, of, part in tree.walk(space, action))), ""
    )


def _leaf_problem(action: Action, space: Space) -> str:
    if not isinstance(space, spaces.Box):
        return "" if space.contains(action) else f"{action!r:.80} is not in {space}"
    try:
        values = np.asarray(action)
    except ValueError:
        return f"{action!r:.80} is not an array"
    if values.dtype.kind not in "fiub":
        return f"{action!r:.80} is not an array of numbers"
    if values.dtype.kind == "f" and space.dtype.kind != "f":
        return f"{action!r:.80} is not an array of whole numbers"
    if values.shape != space.shape:
        return f"it has the shape {values.shape}, the space {space.shape}"
    if not is_finite(values):
        return (
            "it holds values that are not finite: "
            f"{one_line(np.array2string(values, threshold=8, precision=3))}"
        )
    low, high, exact = (array.astype(np.float64) for array in (space.low, space.high, values))
    outside = np.maximum(low - exact, exact - high) > _ROUNDING * np.maximum(np.abs(exact), 1.0)
    for at in np.argwhere(outside):
        place = tuple(at.tolist())
        return f"{values[place]:g} at element {place} is outside [{low[place]:g}, {high[place]:g}]"
    return ""
