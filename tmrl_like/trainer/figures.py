"""What the diagnosis goes by beside a round's metrics: of the newest samples, and of actor and critics on a batch.

Both are bounded, whatever arrives: the samples of one stream at a time, and a batch that was trained on anyway. They
change no random number that training draws. docs/metrics.md explains each figure.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Iterator
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
from tmrl_like.types import Batch, Buffer

Array = np.ndarray[Any, np.dtype[np.float64]]
Figures = dict[str, float]

_ROWS = 800  # the newest samples of the stream, which are looked at
_NEW_ROWS = 100  # before they are looked at again
_FOLLOWED_ROWS = 4000  # before it is another stream's turn
_LARGEST_LEAF = 64  # an array with more numbers is a picture, and left out
_PROBED, _LEAST_PROBED = 128, 8  # observations of a batch


class SampleFigures:
    """Follows the samples of one stream for a while, then those of the next that comes."""

    def __init__(self) -> None:
        self._follow("")

    def _follow(self, stream: str) -> None:
        self._stream = stream
        self._waiting: deque[Buffer] = deque()
        self._num_waiting, self._left = 0, _FOLLOWED_ROWS

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
        if self._left <= 0:
            self._stream = ""
        try:
            obs = np.concatenate([_numbers(segment) for block in blocks for segment in block.segments])
        except ValueError:  # a memory that takes samples of several forms
            return {}
        if not obs.size:
            return {}
        is_step = ~np.concatenate([block.is_reset for block in blocks])[1:]
        return {"observation_moves_share": float((np.diff(obs, axis=0) != 0).any(axis=1)[is_step].mean())}


def _numbers(segment: Any) -> Array:
    """The observations of a segment -> [N, D]; pictures are left out, and what is no number."""
    flat = [
        leaf.reshape(len(leaf), -1)
        for leaf in tree.leaves(segment.tree()[1])
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub" and leaf[0].size <= _LARGEST_LEAF
    ]
    return np.concatenate(flat, axis=1, dtype=np.float64) if flat else np.empty((segment.rows, 0))


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
    space = agent.action_space
    if isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        known |= {"action_numbers": size, "max_entropy": size * math.log(2.0)}
    elif isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        known["max_entropy"] = float(np.log(categories_of(space)[0]).sum())
    return known
