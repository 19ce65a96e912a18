"""How long an action takes until the observation shows it, from what an environment did under
random actions.

The model is o[t+1] = M o[t] + sum over lags j of B_j a[t-j] + noise, where a[t] was given to step t
and o[t+1] came back from it. The actions were drawn at random, each independent of the others and
of everything else. So a lag that explains nothing beyond o[t] and the younger actions has no effect
of its own, and the last one that does is how many actions the observation must hold to be a state.
o[t] is measured with noise, and noise in a regressor would make older actions look as if they
acted: it is replaced by what older observations and actions say of it (instrumental variables).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.base import tree

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

MAX_LAG = 10
FALSE_ALARMS = 0.01  # of environments whose actions do nothing, how many seem to respond
SMALLEST_SHARE = 0.01  # of what actions explain in a component; about a tenth of their effect
_SHUFFLES = 400
_MAX_FEATURES = 32
_FEATURES_PER_LEAF = 8
_IMAGE_SIDE = 16
_LARGEST = 1e9  # of a number that is taken as it is
_CELLS = 8
_ROWS_PER_REGRESSOR = 2
_LEAST_LAG = 3


@dataclass(frozen=True)
class Trace:
    """One episode, or a part of it from a reset on."""

    actions: Array  # [T, A]; actions[t] was given to step t
    # [T + 1, D]; the first is the reset's, observations[t + 1] came back from step t
    observations: Array


@dataclass(frozen=True)
class Response:
    """When actions show in observations. A lag of 0: in the observation that the same step returns.

    Attributes:
        shares: [max_lag + 1], which part of an action's effect shows at which lag; sums to 1, or
            all 0.
        lags: those at which the effect is not chance, in order; empty: no effect was seen.
        hidden_state: older actions explain more than the last observation does, however old: it
            lacks something that moves, a speed say. `lags` are then what two observations leave to
            explain.
        rows: steps that the result rests on.
    """

    shares: Array
    lags: tuple[int, ...]
    hidden_state: bool
    rows: int

    @property
    def max_lag(self) -> int:
        """The longest lag that was looked at."""
        return len(self.shares) - 1

    @property
    def never_ends(self) -> bool:
        """Whether the effect goes on as far as was looked."""
        return bool(self.lags) and self.lags[-1] == self.max_lag

    @property
    def act_buf_len(self) -> int:
        """How many past actions an observation must hold, so that what was ordered and is not seen
        is in it.
        """
        return self.lags[-1] if self.lags else 0


def measure_response(
    traces: Sequence[Trace], targets: slice = slice(None), seed: int = 0
) -> Response | None:
    """Find the lags at which independent random actions act.

    Args:
        traces: what happened.
        targets: on which numbers of an observation; all of them say what is known of the state.
        seed: of the shuffles that say what chance would show.

    Returns:
        The response; None where there are too few steps for so many actions and observations, or
        episodes of a few steps only.
    """
    actions, features = traces[0].actions.shape[1], traces[0].observations.shape[1]

    def suffices(max_lag: int) -> bool:
        rows = sum(max(0, len(trace.actions) - max_lag) for trace in traces)
        return bool(rows >= _ROWS_PER_REGRESSOR * (2 * features + actions * (max_lag + 1)))

    max_lag = max(filter(suffices, range(_LEAST_LAG, MAX_LAG + 1)), default=None)
    return None if max_lag is None else _test_lags(traces, max_lag, targets, 1, seed)


def _test_lags(
    traces: Sequence[Trace], max_lag: int, targets: slice, memory: int, seed: int
) -> Response:
    """Which lags act, beside the last observation? If all the oldest ones seem to: beside the last
    two (`memory`)?

    The last lag is the oldest that adds to all younger ones. Of those up to it, each must add to
    all others.
    """
    random = np.random.default_rng(seed)
    regression = _Regression(traces, max_lag, targets, memory)
    acting = np.flatnonzero(regression.effects(random, beside_younger=True).any(axis=1))
    if acting.size and acting[-1] == max_lag and memory == 1:
        return _test_lags(traces, max_lag, targets, 2, seed)
    shares = np.zeros(max_lag + 1)
    if acting.size:
        last = int(acting[-1])
        effects = _Regression(traces, last, targets, memory).effects(random, beside_younger=False)
        sizes = np.sqrt(effects.sum(axis=1))
        shares[: last + 1] = sizes / sizes.sum() if sizes.any() else np.arange(last + 1) == last
    lags = tuple(map(int, np.flatnonzero(shares)))
    return Response(shares, lags, memory > 1, len(regression.noise))


class _Regression:
    """The targets of an observation on the last `memory` observations before it and on actions.

    Attributes:
        noise: [rows, D], what nothing explains, as large as before the fit.
    """

    def __init__(self, traces: Sequence[Trace], max_lag: int, targets: slice, memory: int) -> None:
        parts = []
        for trace in traces:
            t = np.arange(max(max_lag, memory - 1), len(trace.actions))
            before = [trace.observations[t - i] for i in range(memory)]
            older = [trace.observations[np.maximum(t - memory - i, 0)] for i in range(memory)]
            # these tell of those before, too
            older.append(trace.actions[np.maximum(t - max_lag - 1, 0)])
            # [rows, lags, A]
            acted = np.stack([trace.actions[t - j] for j in range(max_lag + 1)], axis=1)
            new = trace.observations[t + 1, targets]
            parts.append(
                (new, np.concatenate(before, axis=1), acted, np.concatenate(older, axis=1))
            )
        new, last, actions, instruments = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        self._new, last, instruments = map(_scaled, (new, last, instruments))
        self._actions = actions - actions.mean(axis=0)
        flat = self._actions.reshape(len(last), -1)
        predicted = _project(_basis(np.concatenate([flat, instruments], axis=1), 1e-6), last)
        self._known = _basis(predicted, 1e-4)
        coefficients = np.linalg.lstsq(
            np.concatenate([predicted, flat], axis=1), self._new, rcond=1e-4
        )[0]
        noise = self._new - np.concatenate([last, flat], axis=1) @ coefficients
        noise -= noise.mean(axis=0)
        self.noise = noise * np.sqrt(len(noise) / (len(noise) - len(coefficients) - 1))
        self._noise_variance = (self.noise**2).mean(axis=0) + 1e-10

    def effects(self, random: np.random.Generator, beside_younger: bool) -> Array:
        """What each lag explains of each component of the observation, where that is not chance.

        `beside_younger`: beside what observations and younger lags explain; else beside all other
        lags.

        Returns:
            [lags, D], variance times rows; 0 where it is chance, or too small a part of the whole.
        """
        blocks = [self._own(lag, beside_younger) for lag in range(self._actions.shape[1])]
        widths = np.array([[block.shape[1]] for block in blocks])
        together = np.concatenate(blocks, axis=1)
        lag_of = np.repeat(np.eye(len(blocks)), widths[:, 0], axis=1)  # [lags, directions]

        def explained(values: Array) -> Array:
            """[lags, D], in units of what noise explains."""
            total: Array = (
                lag_of @ (together.T @ values) ** 2 / np.maximum(1, widths) / self._noise_variance
            )
            return total

        chance = [
            explained(random.permutation(self.noise)).max(initial=0.0) for _ in range(_SHUFFLES)
        ]
        found = explained(self._new)
        variance = np.maximum(0.0, found - 1.0) * widths * self._noise_variance
        is_real = (found > np.quantile(chance, 1.0 - FALSE_ALARMS)) & (
            variance >= SMALLEST_SHARE * variance.sum(axis=0)
        )
        return np.where(is_real, variance, 0.0)

    def _own(self, lag: int, beside_younger: bool) -> Array:
        """Orthonormal basis of what the observations and the other lags leave of one."""
        beside = self._actions[:, :lag] if beside_younger else np.delete(self._actions, lag, axis=1)
        others = beside.reshape(len(beside), -1)
        others = _basis(others - _project(self._known, others), 1e-6)
        known = np.concatenate([self._known, others], axis=1)
        values = self._actions[:, lag]
        own = values - _project(known, values)
        own -= _project(known, own)  # again: orthogonal to rounding
        directions, sizes, _ = np.linalg.svd(own, full_matrices=False)
        kept: Array = directions[:, sizes > 0.02 * np.linalg.norm(values)]
        return kept


def _project(basis: Array, values: Array) -> Array:
    projected: Array = basis @ (basis.T @ values)
    return projected


def _basis(values: Array, tolerance: float) -> Array:
    """Orthonormal basis of the columns [rows, rank]."""
    directions, sizes, _ = np.linalg.svd(values, full_matrices=False)
    kept: Array = directions[:, sizes > max(tolerance * sizes.max(initial=0.0), 1e-12)]
    return kept


def _scaled(values: Array) -> Array:
    """Columns with mean 0 and deviation 1, without those that are constant."""
    centred = values - values.mean(axis=0)
    deviation = centred.std(axis=0)
    moves = deviation > 1e-9 * np.maximum(1.0, np.abs(values).max(axis=0, initial=0.0))
    scaled: Array = centred[:, moves] / deviation[moves]
    return scaled


# -- observations as vectors -----------------------------------------------------------------------


def to_features(observations: Sequence[Any]) -> tuple[Array, int]:
    """Observations of one structure as rows of a few numbers each.

    Of pictures, averaged over 8 x 8 cells, and of arrays of more than 32 numbers, the 8 directions
    in which they vary most are kept. All else stays as it is, but for text and the like, which is
    left out.

    Returns:
        [len(observations), D], D from 0 to 32, and how many of the D are whole: they come first.
    """
    rows = (
        [leaf for leaf in map(np.asarray, tree.leaves(obs)) if leaf.dtype.kind in "fiub"]
        for obs in observations
    )
    stacked = (np.stack(values).astype(np.float64) for values in zip(*rows, strict=True))
    leaves = [np.clip(np.nan_to_num(values), -_LARGEST, _LARGEST) for values in stacked]
    none = np.empty((len(observations), 0))
    exact = [leaf.reshape(len(leaf), -1) for leaf in leaves if leaf[0].size <= _MAX_FEATURES]
    reduced = [_reduce(leaf) for leaf in leaves if leaf[0].size > _MAX_FEATURES]
    whole = _principal(_scaled(np.concatenate([none, *exact], axis=1)), _MAX_FEATURES)
    rest = _principal(
        _scaled(np.concatenate([none, *reduced], axis=1)), _MAX_FEATURES - whole.shape[1]
    )
    return np.concatenate([whole, rest], axis=1), whole.shape[1]


def _reduce(leaf: Array) -> Array:
    """[N, ...] -> [N, 8]."""
    sides = sorted(range(1, leaf.ndim), key=lambda axis: leaf.shape[axis])[-2:]
    if len(sides) == 2 and min(leaf.shape[axis] for axis in sides) >= _IMAGE_SIDE:
        for axis in sides:
            cells = np.array_split(leaf, _CELLS, axis)
            leaf = np.concatenate([cell.mean(axis, keepdims=True) for cell in cells], axis)
    flat = leaf.reshape(len(leaf), -1)
    return _principal(flat - flat.mean(axis=0), _FEATURES_PER_LEAF)


def _principal(centred: Array, number: int) -> Array:
    """At most `number` columns: the columns themselves, or the directions in which they vary
    most.
    """
    if centred.shape[1] <= number:
        return centred
    directions, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    principal: Array = (directions * sizes)[:, :number]
    return principal
