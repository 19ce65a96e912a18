"""Estimates how long an action takes until the observation shows it, from what an environment did
under random actions.

The model is o[t+1] = M o[t] + sum over lags j of B_j a[t-j] + noise, where a[t] was given to step t
and o[t+1] came back from it. The actions were drawn at random, each independent of the others and
of everything else. So a lag that explains nothing beyond o[t] and the younger actions has no effect
of its own. The last lag that does explain something is the number of past actions that the
observation must hold to be a state.

o[t] is measured with noise, and noise in a regressor would make older actions appear to have an
effect. So o[t] is replaced by its prediction from older observations and actions (instrumental
variables).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tmrl_like.base import tree

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

MAX_LAG = 10
FALSE_ALARMS = 0.01  # share of environments without any response that seem to respond
SMALLEST_SHARE = 0.01  # of the variance that actions explain; about a tenth of their effect
_SHUFFLES = 400
_MAX_FEATURES = 32
_FEATURES_PER_LEAF = 8
_IMAGE_SIDE = 16
_LARGEST = 1e9  # larger numbers are clipped
_CELLS = 8
_ROWS_PER_REGRESSOR = 2
_LEAST_LAG = 3


@dataclass(frozen=True)
class Trace:
    """One episode, or the first part of one."""

    actions: Array  # [T, A]; actions[t] was given to step t
    # [T + 1, D]; the first is the reset's, observations[t + 1] came back from step t
    observations: Array


@dataclass(frozen=True)
class Response:
    """When actions show in observations. Lag 0 is the observation that the same step returns.

    Attributes:
        shares: [max_lag + 1], the share of an action's effect that shows at each lag; sums to 1, or
            is all 0.
        hidden_state: whether even the oldest actions explain something that the last observation
            does not: it lacks something that moves, such as a speed. `lags` are then those with an
            effect beside the last two observations.
        rows: number of steps that the result rests on.
    """

    shares: Array
    hidden_state: bool
    rows: int

    @property
    def lags(self) -> tuple[int, ...]:
        """Lags at which the effect is not chance, in ascending order; empty if none was seen."""
        return tuple(lag for lag, share in enumerate(self.shares) if share > 0)

    @property
    def max_lag(self) -> int:
        """The longest lag that was examined."""
        return len(self.shares) - 1

    @property
    def never_ends(self) -> bool:
        """Whether the effect lasts up to the longest lag that was examined."""
        return bool(self.shares[-1] > 0)

    @property
    def act_buf_len(self) -> int:
        """Number of past actions that an observation must hold, so that it includes those whose
        effect it does not show yet.
        """
        return self.lags[-1] if self.lags else 0


def measure_response(
    traces: Sequence[Trace], targets: slice = slice(None), seed: int = 0
) -> Response | None:
    """Find the lags at which independent random actions have an effect.

    Args:
        traces: the recorded steps.
        targets: numbers of an observation in which to look for the effect; all its numbers describe
            the state.
        seed: seed of the shuffles that estimate what chance would show.

    Returns:
        The response, or None if there are too few steps for this many actions and observations, or
        only episodes of a few steps.
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
    """Test which lags have an effect beside the last `memory` observations. If the oldest lag seems
    to have one beside a single observation, test again beside two.

    The last lag is the oldest that adds to all younger ones. Each lag up to it must add to all
    others.
    """
    random = np.random.default_rng(seed)
    regression = _Regression(traces, max_lag, targets, memory)
    acting = np.flatnonzero(regression.effects(random, beside_older=False))
    if max_lag in acting and memory == 1:
        return _test_lags(traces, max_lag, targets, 2, seed)
    shares = np.zeros(max_lag + 1)
    if acting.size:
        last = int(acting[-1])
        younger = _Regression(traces, last, targets, memory)
        sizes = np.sqrt(younger.effects(random, beside_older=True))
        shares[: last + 1] = sizes / sizes.sum() if sizes.any() else np.arange(last + 1) == last
    return Response(shares, memory > 1, len(regression.noise))


class _Regression:
    """A regression of an observation's targets on the last `memory` observations before it and on
    actions.

    Attributes:
        noise: [rows, D], what nothing explains, scaled up to its size before the fit.
    """

    def __init__(self, traces: Sequence[Trace], max_lag: int, targets: slice, memory: int) -> None:
        parts = []
        for trace in traces:
            t = np.arange(max(max_lag, memory - 1), len(trace.actions))
            before = [trace.observations[t - i] for i in range(memory)]
            older = [trace.observations[np.maximum(t - memory - i, 0)] for i in range(memory)]
            # an older action is an instrument, too
            older.append(trace.actions[np.maximum(t - max_lag - 1, 0)])
            acted = [trace.actions[t - lag] for lag in range(max_lag + 1)]
            after = [trace.observations[t + 1, targets]]
            parts.append([np.concatenate(kind, axis=1) for kind in (after, before, older, acted)])
        new, last, instruments, actions = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        self._new, last, instruments = map(_scaled, (new, last, instruments))
        self._actions = actions - actions.mean(axis=0)
        self._lags = np.arange(actions.shape[1]) // traces[0].actions.shape[1]  # of each column
        given = np.concatenate([self._actions, instruments], axis=1)
        self._predicted = given @ np.linalg.lstsq(given, last, rcond=1e-6)[0]
        known = np.concatenate([self._predicted, self._actions], axis=1)
        coefficients = np.linalg.lstsq(known, self._new, rcond=1e-4)[0]
        noise = self._new - np.concatenate([last, self._actions], axis=1) @ coefficients
        noise -= noise.mean(axis=0)
        self.noise = noise * np.sqrt(len(noise) / (len(noise) - len(coefficients) - 1))

    def effects(self, random: np.random.Generator, beside_older: bool) -> Array:
        """Return what each lag explains of the targets, beyond chance, beside the observations,
        younger lags and, with `beside_older`, older ones.

        Returns:
            [lags], variance times rows; 0 if it is chance or too small a share of the whole.
        """
        variance = (self.noise**2).mean(axis=0) + 1e-10
        blocks = [self._own(lag, beside_older) for lag in range(self._lags[-1] + 1)]
        widths = np.array([block.shape[1] for block in blocks])
        together = np.concatenate(blocks, axis=1)
        sums = np.repeat(np.eye(len(blocks)), widths, axis=1)  # [lags, directions]
        unit = np.maximum(1, widths)[:, None] * variance

        def explained(values: Array) -> Array:
            """Return [lags, D], in units of what noise explains of each target."""
            found: Array = sums @ (together.T @ values) ** 2 / unit
            return found

        chance = [
            explained(random.permutation(self.noise)).max(initial=0.0) for _ in range(_SHUFFLES)
        ]
        found = explained(self._new)
        effects = np.maximum(0.0, found - 1.0) * unit
        is_real = (found > np.quantile(chance, 1.0 - FALSE_ALARMS)) & (
            effects >= SMALLEST_SHARE * effects.sum(axis=0)
        )
        real: Array = np.where(is_real, effects, 0.0).sum(axis=1)
        return real

    def _own(self, lag: int, beside_older: bool) -> Array:
        """Return an orthonormal basis of what the observations and other lags leave of a lag."""
        is_own = self._lags == lag
        is_other = self._lags != lag if beside_older else self._lags < lag
        others = np.concatenate([self._predicted, self._actions[:, is_other]], axis=1)
        values = self._actions[:, is_own]
        left = values - others @ np.linalg.lstsq(others, values, rcond=1e-6)[0]
        directions, sizes, _ = np.linalg.svd(left, full_matrices=False)
        own: Array = directions[:, sizes > 0.02 * np.linalg.norm(values)]
        return own


def _scaled(values: Array) -> Array:
    """Scale the columns to mean 0 and deviation 1; drop constant ones."""
    centred = values - values.mean(axis=0)
    deviation = centred.std(axis=0)
    moves = deviation > 1e-9 * np.maximum(1.0, np.abs(values).max(axis=0, initial=0.0))
    scaled: Array = centred[:, moves] / deviation[moves]
    return scaled


# -- observations as vectors -----------------------------------------------------------------------


def to_features(observations: Sequence[Any]) -> tuple[Array, int]:
    """Turn observations of one structure into rows of a few numbers each.

    Arrays of more than 32 numbers are reduced to the 8 directions in which they vary most; pictures
    are first averaged over a grid of 8 x 8 cells. Everything else stays as it is, except text and
    the like, which is left out.

    Returns:
        [len(observations), D], D from 0 to 32, and how many of the D are not reduced; these come
        first.
    """
    rows = (
        [leaf for leaf in map(np.asarray, tree.leaves(obs)) if leaf.dtype.kind in "fiub"]
        for obs in observations
    )
    exact = [np.empty((len(observations), 0))]
    reduced = exact.copy()
    for values in zip(*rows, strict=True):
        leaf = np.nan_to_num(np.stack(values).astype(np.float64)).clip(-_LARGEST, _LARGEST)
        if leaf[0].size > _MAX_FEATURES:
            reduced.append(_reduce(leaf))
        else:
            exact.append(leaf.reshape(len(leaf), -1))
    whole = _principal(_scaled(np.concatenate(exact, axis=1)), _MAX_FEATURES)
    most = _MAX_FEATURES - whole.shape[1]
    rest = _principal(_scaled(np.concatenate(reduced, axis=1)), most)
    return np.concatenate([whole, rest], axis=1), whole.shape[1]


def _reduce(leaf: Array) -> Array:
    """Reduce [N, ...] to [N, 8]."""
    sides = sorted(range(1, leaf.ndim), key=lambda axis: leaf.shape[axis])[-2:]
    if len(sides) == 2 and min(leaf.shape[axis] for axis in sides) >= _IMAGE_SIDE:
        for axis in sides:
            cells = np.array_split(leaf, _CELLS, axis)
            leaf = np.concatenate([cell.mean(axis, keepdims=True) for cell in cells], axis)
    flat = leaf.reshape(len(leaf), -1)
    return _principal(flat - flat.mean(axis=0), _FEATURES_PER_LEAF)


def _principal(centred: Array, number: int) -> Array:
    """Return at most `number` columns: the columns themselves, or the directions in which they vary
    most.
    """
    if centred.shape[1] <= number:
        return centred
    directions, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    principal: Array = (directions * sizes)[:, :number]
    return principal
