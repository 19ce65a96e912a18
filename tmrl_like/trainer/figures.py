"""What the diagnosis goes by beside a round's metrics: of the newest samples, and of actor and critics on a batch.

Both are bounded, whatever arrives: the samples of one stream at a time, and a batch that was trained on anyway. They
change no random number that training draws. docs/metrics.md explains each figure.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from tmrl_like.agents.ensemble import EnsembleMLP
from tmrl_like.agents.layout import action_bounds, categories_of
from tmrl_like.agents.models import SamplingActor
from tmrl_like.agents.observations import Encoder
from tmrl_like.base import tree
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.replay.memory import ReplayMemory
from tmrl_like.types import Batch, Buffer

Array = np.ndarray[Any, np.dtype[np.float64]]
Figures = dict[str, float]

MAX_LAG = 8  # of an action
_ROWS = 800  # the newest samples of the stream, which are looked at
_NEW_ROWS = 100  # before they are looked at again
_FOLLOWED_ROWS = 4000  # before it is another stream's turn
_FEATURES = 12  # numbers of an observation
_LARGEST_LEAF = 64  # an array with more numbers is a picture, and left out
_MOVES = 0.5  # share of steps; else nothing is to be seen of actions
_NEARLY = 1.8  # times what all actions leave unexplained
_ROWS_PER_REGRESSOR = 4
_PROBED, _LEAST_PROBED = 128, 8  # observations of a batch
_AT_BOUNDS = 0.98  # of the way from the middle to a bound


class SampleFigures:
    """Follows the samples of one stream for a while, then those of the next that comes."""

    def __init__(self) -> None:
        self._follow("")

    def _follow(self, stream: str) -> None:
        self._stream = stream
        self._waiting: deque[Buffer] = deque()
        self._num_waiting, self._left = 0, _FOLLOWED_ROWS
        self._known: tuple[Any, ...] = ()  # observations [T, D], actions [T, A], is a reset's [T]

    def add(self, buffer: Buffer) -> None:
        """Samples enter the memory."""
        if not self._stream:
            self._follow(buffer.stream)
        if buffer.stream == self._stream and buffer.blocks:
            self._waiting.append(buffer)
            self._num_waiting += len(buffer)
            while self._num_waiting - len(self._waiting[0]) >= _ROWS:
                self._num_waiting -= len(self._waiting.popleft())

    def figures(self) -> Figures:
        """Of the newest samples; nothing while few have come since the last figures."""
        if not self._num_waiting:
            self._stream = ""
        if self._num_waiting < _NEW_ROWS:
            return {}
        blocks = [block for buffer in self._waiting for block in buffer.blocks]
        self._left -= self._num_waiting
        self._num_waiting = 0
        self._waiting.clear()
        segments = [segment for block in blocks for segment in block.segments]
        act, obs, *_ = segments[0].tree()
        end_of_act = sum(1 for _ in tree.leaves(act))
        end = end_of_act + sum(1 for _ in tree.leaves(obs))
        try:
            new = (
                _numbers("fiub", segments, end_of_act, end),
                _numbers("f", segments, 0, end_of_act),
                np.concatenate([block.is_reset for block in blocks]),
            )
            joined = [*map(np.concatenate, zip(self._known, new, strict=True))] if self._known else new
        except ValueError:  # a memory that takes samples of several forms
            self._stream = ""
            return {}
        self._known = obs, act, is_reset = tuple(values[-_ROWS:] for values in joined)
        if self._left <= 0:
            self._stream = ""
        if not obs.size or not (np.isfinite(obs).all() and np.isfinite(act).all()):  # a preprocessor may fill gaps
            return {}
        moves = float((np.diff(obs, axis=0) != 0).any(axis=1)[is_reset[1:] == 0].mean())
        return {"observation_moves_share": moves} | (lags(obs, act, is_reset) if moves > _MOVES else {})


def lags(obs: Array, act: Array, is_reset: Any) -> Figures:
    """How many past actions tell what an observation becomes, beside the last two observations.

    Linear regressions of o[t] - o[t-1] on o[t-1], o[t-2] and the actions a[t], a[t-1], …, a[t-j], nested in j and so
    from one QR decomposition; a[t] was given to the step that returned o[t]. What they leave is divided by the degrees
    of freedom.

    Args:
        obs: [T, D] of consecutive samples.
        act: [T, A], likewise.
        is_reset: bool [T], of the samples of resets.

    Returns:
        `action_lag_steps`, the smallest j that leaves nearly as little unexplained as the largest: how long an action
        buffer must be; `action_effect_share`, how much all actions explain of what observations leave. Nothing where
        too few steps follow each other.
    """
    row = np.arange(len(is_reset))
    t = np.flatnonzero(row - np.maximum.accumulate(np.where(is_reset, row, -1)) > MAX_LAG + 1)
    rows, width, actions = len(t), 2 * obs.shape[1], act.shape[1]
    if not width or not actions or rows < _ROWS_PER_REGRESSOR * (width + (MAX_LAG + 1) * actions):
        return {}
    changes = _standardised(obs[t] - obs[t - 1])
    regressors = _standardised(np.concatenate([obs[t - 1], obs[t - 2], *(act[t - j] for j in range(MAX_LAG + 1))], 1))
    regressors += 1e-6 * np.random.default_rng(0).standard_normal(regressors.shape)  # some may repeat others
    explained = (np.linalg.qr(regressors)[0].T @ changes) ** 2
    left = (changes**2).sum(axis=0) - np.cumsum(explained, axis=0)[width - 1 :: actions]  # [MAX_LAG + 2, D]: none, j …
    left = left.sum(axis=1) / (rows - 1 - width - actions * np.arange(MAX_LAG + 2))
    lag, effect = max(0, np.flatnonzero(left <= _NEARLY * left.min())[0] - 1), 1.0 - left.min() / max(left[0], 1e-9)
    return {"action_lag_steps": float(lag), "action_effect_share": float(effect)}


def _standardised(values: Array) -> Array:
    """Columns of mean 0 and deviation 1; those that are constant are 0."""
    centred = values - values.mean(axis=0)
    deviation = centred.std(axis=0)
    standardised: Array = centred / np.where(deviation > 1e-9, deviation, np.inf)
    return standardised


def _numbers(kinds: str, segments: Sequence[Any], start: int, end: int) -> Array:
    """Leaves of the samples -> [N, D], at most `_FEATURES` of the numbers; pictures are left out, and other kinds."""
    flat = [
        np.concatenate(parts).reshape(sum(map(len, parts)), -1)
        for parts in zip(*(segment.leaves[start:end] for segment in segments), strict=True)
        if isinstance(parts[0], np.ndarray) and parts[0].dtype.kind in kinds and parts[0][0].size <= _LARGEST_LEAF
    ]
    joined = np.concatenate(flat, axis=1, dtype=np.float64) if flat else np.empty((0, 0))
    return joined[:, :: max(1, -(-joined.shape[1] // _FEATURES))]


class ActorFigures:
    """Asks an actor and its critics what they make of a batch, always by the same noise."""

    def __init__(self) -> None:
        self._obs: Any = None  # always the same ones
        self._act: Any = None  # what it did on them

    @torch.no_grad()
    def figures(self, agent: Any, batch: Batch) -> Figures:
        """Of a batch, and of what changed since the last figures."""
        actor, figures = agent.get_actor(), _values(agent, batch)
        obs = tree.map_leaves(lambda leaf: leaf[:_PROBED], batch.obs)
        if isinstance(critic := getattr(agent, "critic", None), EnsembleMLP) and len(batch.rew) >= _LEAST_PROBED:
            with _own_noise(agent.device):
                figures["critic_spread"] = float(critic(obs, batch.act[:_PROBED]).std(1).min())
        encoder = getattr(actor, "encoder", None)
        if isinstance(encoder, Encoder) and not encoder.images:
            seen = encoder(obs)
            figures["observation_largest"] = float(seen.square().mean(0).max()) ** 0.5
            figures["observation_spread"] = float(seen.std(0).max())
        if not isinstance(actor, SamplingActor) or len(batch.rew) < _LEAST_PROBED:
            return figures
        own, others = _sample(actor, obs), _sample(actor, tree.map_leaves(lambda leaf: leaf.roll(1, 0), obs))
        figures["action_spread"] = float((own - others).square().mean() / 2) ** 0.5
        figures["actions_at_bounds_share"] = float((own.abs() > _AT_BOUNDS).float().mean())
        self._obs = obs if self._obs is None else self._obs
        before, self._act = self._act, _sample(actor, self._obs)
        return figures if before is None else figures | {"policy_change": float((self._act - before).abs().mean())}


@contextlib.contextmanager
def _own_noise(device: str) -> Iterator[None]:
    """Within it torch draws the same numbers each time, and none of those that training draws."""
    with torch.random.fork_rng([device] if device.startswith("cuda") else []):
        torch.manual_seed(0)
        yield


def _sample(actor: SamplingActor, obs: Any) -> torch.Tensor:
    """Actions [B, A], scaled to [-1, 1]."""
    center, half = action_bounds(actor.action_space)
    with _own_noise(actor.device):
        act = actor.sample(obs)[0].float().cpu()
    return (act.reshape(len(act), -1) - torch.from_numpy(center)) / torch.from_numpy(half)


def _values(agent: Any, batch: Batch) -> Figures:
    """The batch's rewards, and what returns would be with the same reward in each step, in the unit of `q_mean`."""
    gamma = getattr(agent, "gamma", 1.0)
    if not gamma < 1.0:
        return {"reward_low": float(batch.rew.min()), "reward_high": float(batch.rew.max())}
    for_ever = batch.rew / (1.0 - (gamma if batch.discount is None else batch.discount))
    low, high = float(for_ever.min()), float(for_ever.max())
    scale = 1.0 if getattr(agent, "return_scale", None) is None else float(agent.return_scale.scale())
    figures = {"reward_low": low * (1.0 - gamma), "reward_high": high * (1.0 - gamma)}
    return figures | {"value_low": low / scale, "value_high": high / scale}


def known_figures(agent: Any, memory: MemoryDataloading) -> Figures:
    """What `Diagnosis` is made with."""
    known: Figures = {"batch_size": memory.batch_size, "memory_size": memory.memory_size}
    known |= {"gamma": agent.gamma} if hasattr(agent, "gamma") else {}
    known |= {"act_buf_len": memory.act_buf_len} if isinstance(memory, ReplayMemory) else {}
    space = agent.action_space
    if isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        known |= {"action_numbers": size, "max_entropy": size * math.log(2.0)}
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        known["max_entropy"] = float(np.log(categories_of(space)[0]).sum())
    return known
