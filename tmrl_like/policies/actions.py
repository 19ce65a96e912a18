"""What an action must be before it is sent to an environment."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

_ROUNDING = 1e-5  # of a bound's size, and at least that much


def is_finite(value: Any) -> bool:
    """Whether no number in an action, or an observation, is NaN or infinite. Costs half a microsecond."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fc":
            return True
        return math.isfinite(np.vdot(value, value).real) or bool(np.isfinite(value).all())
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    if isinstance(value, tuple | list):
        return all(map(is_finite, value))
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    return True


def action_problem(action: Any, space: gymnasium.Space[Any]) -> str:
    """Why an action is not one of a space; empty: it is. Bounds of a Box may be missed by rounding."""
    if isinstance(space, spaces.Box):
        return _box_problem(action, space)
    if isinstance(space, spaces.Tuple):
        if not isinstance(action, tuple | list) or len(action) != len(space.spaces):
            return f"{action!r:.80} is no tuple of {len(space.spaces)} items"
        problems = [action_problem(a, s) for a, s in zip(action, space.spaces, strict=True)]
        return next(filter(None, problems), "")
    if isinstance(space, spaces.Dict):
        if not isinstance(action, dict) or set(action) != set(space.spaces):
            return f"{action!r:.80} is no dict with the keys {', '.join(map(str, space.spaces))}"
        return next(filter(None, (action_problem(action[key], s) for key, s in space.spaces.items())), "")
    return "" if space.contains(action) else f"{action!r:.80} is not in {space}"


def _box_problem(action: Any, space: spaces.Box) -> str:
    try:
        values = np.asarray(action)
    except ValueError:
        return f"{action!r:.80} is no array"
    if values.dtype.kind not in "fiub":
        return f"{action!r:.80} is no array of numbers"
    if values.shape != space.shape:
        return f"it has the shape {values.shape}, the space {space.shape}"
    if not np.isfinite(values).all():
        return f"it holds values that are not finite: {_shown(values)}"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    outside = (values < low - _rounding(low)) | (values > high + _rounding(high))
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        return f"{values[at]:g} at element {at} is outside [{low[at]:g}, {high[at]:g}]"
    return ""


def _rounding(bound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rounding: np.ndarray[Any, Any] = _ROUNDING * np.maximum(np.where(np.isfinite(bound), np.abs(bound), 0.0), 1.0)
    return rounding


def _shown(values: np.ndarray[Any, Any]) -> str:
    return np.array2string(values, threshold=8, precision=3).replace("\n", "")
