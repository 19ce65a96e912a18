"""What an action must be before it is sent to an environment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.base.text import one_line

_SHORT = 40  # numbers; beyond, a dot product is faster
_ROUNDING = 1e-5  # of a bound's size, and at least that much


def is_finite(value: Any) -> bool:
    """Whether no number in an action, or an observation, is NaN or infinite. Of one space: `finite_check`."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "fc":
            return True
        return math.isfinite(np.vdot(value, value).real) or bool(np.isfinite(value).all())
    if isinstance(value, float | np.floating):
        return math.isfinite(value)
    if isinstance(value, tuple | list):  # the control loop's: three times as fast as a walk
        return all(map(is_finite, value))
    return all(map(is_finite, value.values())) if isinstance(value, dict) else True


def finite_check(space: gymnasium.Space[Any]) -> Callable[[Any], bool]:
    """`is_finite` for values of a space, whatever they are; several times as fast where these are short vectors."""
    conditions, vectors = list[str](), list[str]()

    def visit(part: gymnasium.Space[Any], path: str) -> None:
        if isinstance(part, spaces.Tuple | spaces.Dict):
            parts = dict(part.spaces) if isinstance(part, spaces.Dict) else dict(enumerate(part.spaces))
            conditions.append(f"len({path}) == {len(parts)}")
            for key, inner in parts.items():
                visit(inner, f"{path}[{key!r}]")
        elif isinstance(part, spaces.Box) and len(part.shape) == 1 and part.shape[0] <= _SHORT:
            vectors.append(f"*{path}.tolist()")
        else:
            conditions.append(f"is_finite({path})")

    visit(space, "value")
    names = {"is_finite": is_finite, "isfinite": math.isfinite, "hypot": math.hypot}
    conditions.append(f"isfinite(hypot({', '.join(vectors)}))")
    quick = eval(f"lambda value: {' and '.join(conditions)}", names)

    def check(value: Any) -> bool:
        try:
            return quick(value) or is_finite(value)
        except (TypeError, AttributeError, LookupError):  # not what the space says
            return is_finite(value)

    return check


def action_problem(action: Any, space: gymnasium.Space[Any]) -> str:
    """Why an action is not one of a space; empty: it is. Bounds of a Box may be missed by rounding."""
    return next(filter(None, (_leaf_problem(part, of) for _, of, part in tree.walk(space, action))), "")


def _leaf_problem(action: Any, space: gymnasium.Space[Any]) -> str:
    if not isinstance(space, spaces.Box):
        return "" if space.contains(action) else f"{action!r:.80} is not in {space}"
    try:
        values = np.asarray(action)
    except ValueError:
        return f"{action!r:.80} is not an array"
    if values.dtype.kind not in "fiub":
        return f"{action!r:.80} is not an array of numbers"
    if values.shape != space.shape:
        return f"it has the shape {values.shape}, the space {space.shape}"
    if not np.isfinite(values).all():
        return f"it holds values that are not finite: {one_line(np.array2string(values, threshold=8, precision=3))}"
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    outside = (values < low - _rounding(low)) | (values > high + _rounding(high))
    if outside.any():
        at = tuple(int(i) for i in np.argwhere(outside)[0])
        return f"{values[at]:g} at element {at} is outside [{low[at]:g}, {high[at]:g}]"
    return ""


def _rounding(bound: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rounding: np.ndarray[Any, Any] = _ROUNDING * np.maximum(np.where(np.isfinite(bound), np.abs(bound), 0.0), 1.0)
    return rounding
