"""Adds to the metrics of each round whether training learns: losses on held-out episodes, and the
diagnosis.

The diagnosis is based on the metrics of a round, on figures of the newest samples, and on figures
of actor and critics on a batch. The work is bounded, however much arrives: samples of one stream at
a time, and a batch that was trained on anyway. It does not change the random numbers that training
draws. docs/metrics.md explains each figure.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from tmrl_like.agents.agent import TrainingAgent, modules_of
from tmrl_like.agents.ensemble import EnsembleMLP
from tmrl_like.agents.models import SamplingActor
from tmrl_like.agents.observations import Encoder
from tmrl_like.agents.sac import SACAgent
from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.metrics.reading import Record
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.trainer.diagnosis import Diagnosis
from tmrl_like.trainer.watch import Listener, RecentRewards, StepMetrics
from tmrl_like.types import Action, Batch, Buffer, Delivery, Observation
from tmrl_like.wire.columns import Columns

log = logging.getLogger("tmrl_like.trainer")

Array = npt.NDArray[np.float64]
Figures = dict[str, float]

_FIGURES_EVERY = 500  # training steps plus samples
# steps between two figures: fewer give none, and of more only the newest count
_LEAST_STEPS = 100
_MOST_STEPS = 800
_LARGEST_LEAF = 64  # an array with more numbers is treated as a picture and left out
_PROBED = 128  # observations used from a batch
_LEAST_PROBED = 8


class LearningWatch(Listener):
    """Adds to each round the losses on held-out episodes and the diagnosis, and to some rounds the
    figures behind it.
    """

    def __init__(
        self,
        agent: TrainingAgent,
        memory: MemoryDataloading,
        diagnosis: Diagnosis,
        rewards: RecentRewards,
    ) -> None:
        self._agent = agent
        self._memory = memory
        self._diagnosis = diagnosis
        self._rewards = rewards
        self._num_ranks = 1
        self._of_samples = SampleFigures()
        self._of_actor = ActorFigures()
        self._batch: Batch | None = None  # the newest batch that was trained on
        self._measured_at: float = 0  # training steps plus samples

    def join(self, num_ranks: int) -> None:
        """Note that so many trainers learn as one."""
        self._num_ranks = num_ranks

    def on_samples(self, delivery: Delivery) -> None:
        self._of_samples.add(delivery.buffer)
        self._diagnosis.add(delivery.episodes)

    def on_step(self, batch: Batch, metrics: StepMetrics) -> None:
        self._batch = batch

    def on_round(self, record: Record) -> None:
        held_out = self._memory.sample_held_out()
        if held_out is not None:
            # so that training draws the same numbers as without this
            networks = [*modules_of(self._agent).values()]
            if isinstance(self._agent, SACAgent):
                networks.append(self._agent.critic_frozen)  # no attribute of the instance
            with same_noise(self._agent.device, *networks):
                losses = self._agent.evaluate(held_out)
            record |= {f"{name}_held_out": float(loss) for name, loss in losses.items()}
        done = record["training_steps_total"] + record["env_steps_total"]
        if self._batch is not None and done - self._measured_at >= _FIGURES_EVERY:
            self._measured_at = done
            try:
                record |= self._of_samples.figures() | self._of_actor.figures(
                    self._agent, self._batch
                )
            except Exception as error:  # may come from the user's agent
                self._measured_at = math.inf
                log.warning(
                    "no figures of samples and actor: %s; training goes on", one_line(error)
                )
            if len(newest := self._rewards.newest):
                low, high = float(newest.min()), float(newest.max())
                record["reward_low"] = min(record.get("reward_low", low), low)
                record["reward_high"] = max(record.get("reward_high", high), high)
            known = known_figures(self._agent, self._memory, self._num_ranks)
            self._diagnosis.judge(known | record)
        record["learning"] = self._diagnosis.line


class SampleFigures:
    """Measures whether observations change. It follows the samples of one stream, and when that
    falls silent, those of the next.
    """

    def __init__(self) -> None:
        self._stream = ""
        self._last: list[Array] = []  # the newest observation, [1, D]
        # whether the observation changed, for each of the newest steps
        self._moves: deque[bool] = deque(maxlen=_MOST_STEPS)

    def add(self, buffer: Buffer) -> None:
        """Take samples that enter the memory."""
        if not self._stream:
            self._stream = buffer.stream
            self._last = []
        for block in buffer.blocks if buffer.stream == self._stream else ():
            try:
                obs = np.concatenate(self._last + [_numbers(segment) for segment in block.segments])
            except ValueError:  # the memory takes samples of several forms
                self._last = []
                continue
            if obs.size:
                is_step = ~block.is_reset[len(block) - len(obs) + 1 :]
                self._moves.extend((np.diff(obs, axis=0) != 0).any(axis=1)[is_step].tolist())
                self._last = [obs[-1:]]

    def figures(self) -> Figures:
        """Return figures of the newest steps; none if too few have come since the last figures."""
        if not self._moves:
            self._stream = ""
        if len(self._moves) < _LEAST_STEPS:
            return {}
        share = float(np.mean(self._moves))
        self._moves.clear()
        return {"observation_moves_share": share}


def _numbers(segment: Columns) -> Array:
    """Return the observations of a segment as [N, D], without pictures and values that are not
    numbers.
    """
    flat = [
        leaf.reshape(len(leaf), -1)
        for leaf in tree.leaves(segment.tree()[1])
        if isinstance(leaf, np.ndarray)
        and leaf.dtype.kind in "fiub"
        and leaf[0].size <= _LARGEST_LEAF
    ]
    return np.concatenate(flat, axis=1, dtype=np.float64) if flat else np.empty((segment.rows, 0))


class ActorFigures:
    """Measures what an actor and its critics output on a batch, always with the same noise."""

    def __init__(self) -> None:
        # observations and actions of the first batch, for figures of what changes
        self._first: tuple[Observation, Action] | None = None
        self._before: dict[str, torch.Tensor] = {}  # what came of them last time

    @torch.no_grad()
    def figures(self, agent: TrainingAgent, batch: Batch) -> Figures:
        """Return figures of a batch, and of what has changed since the last figures."""
        actor = agent.get_actor()
        figures = _of_rewards(agent, batch)
        obs = tree.map_leaves(lambda leaf: leaf[:_PROBED], batch.obs)
        if len(batch.rew) < _LEAST_PROBED:
            return figures
        figures |= _of_first_layer(actor, obs)
        act = tree.map_leaves(lambda leaf: leaf[:_PROBED], batch.act)
        self._first = first_obs, first_act = self._first or (obs, act)
        if isinstance(agent, SACAgent) and isinstance(agent.critic, EnsembleMLP):
            with same_noise(agent.device, agent.critic_frozen):
                # a critic with batch normalisation would learn from what it is asked
                figures["critic_spread"] = float(agent.critic_frozen(obs, act).std(1).min())
                values = agent.critic_frozen(first_obs, first_act)
            figures |= self._change("critic_change", values)
        space = actor.action_space
        if (
            isinstance(actor, SamplingActor)
            and isinstance(space, spaces.Box)
            and space.is_bounded()
        ):
            own = _sample(actor, obs)
            others = _sample(actor, tree.map_leaves(lambda leaf: leaf.roll(1, 0), obs))
            figures["action_spread"] = float((own - others).square().mean() / 2) ** 0.5
            figures |= self._change("policy_change", _sample(actor, first_obs))
        return figures

    def _change(self, name: str, now: torch.Tensor) -> Figures:
        """Return by how much values have changed since the last figures; nothing at first."""
        before = self._before.get(name)
        self._before[name] = now
        return {} if before is None else {name: float((now - before).abs().mean())}


def _of_first_layer(actor: ActorModule, obs: Observation) -> Figures:
    for encoder in actor.children():
        if isinstance(encoder, Encoder) and not encoder.images:
            seen = encoder(obs)
            return {
                "observation_largest": float(seen.square().mean(0).max()) ** 0.5,
                "observation_spread": float(seen.std(0).max()),
            }
    return {}


def _of_rewards(agent: TrainingAgent, batch: Batch) -> Figures:
    """Return the range of the batch's rewards, and of the returns if each step gave the same
    reward, in the unit of `q_mean`. Sums over several steps are no rewards.
    """
    gamma, figures = agent.gamma, Figures()
    if batch.discount is None:
        figures = {"reward_low": float(batch.rew.min()), "reward_high": float(batch.rew.max())}
    if gamma is None or gamma >= 1.0:
        return figures
    for_ever = batch.rew / (1.0 - (gamma if batch.discount is None else batch.discount))
    scale = 1.0
    if isinstance(agent, SACAgent) and agent.return_scale is not None:
        scale = float(agent.return_scale.scale())
    return figures | {
        "value_low": float(for_ever.min()) / scale,
        "value_high": float(for_ever.max()) / scale,
    }


def _sample(actor: SamplingActor, obs: Observation) -> torch.Tensor:
    """Return sampled actions [B, A], in half ranges of the action space."""
    space = actor.action_space
    assert isinstance(space, spaces.Box)
    with same_noise(actor.device, actor):
        act = actor.sample(obs)[0].float().cpu()
    return (act / torch.as_tensor((space.high - space.low) / 2)).reshape(len(act), -1)


@contextlib.contextmanager
def same_noise(device: str, *networks: torch.nn.Module) -> Iterator[None]:
    """Within the block, let torch draw the same numbers each time, without affecting those of
    training. After it, restore the networks' buffers, which may be statistics of batches.
    """
    kept = [
        (module, name, buffer, buffer.clone())
        for network in networks
        for module in network.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        with torch.random.fork_rng([device] if device.startswith("cuda") else []):
            torch.manual_seed(0)
            yield
    finally:
        for module, name, buffer, before in kept:
            setattr(module, name, buffer.copy_(before))  # it may have been replaced


def known_figures(agent: TrainingAgent, memory: MemoryDataloading, num_ranks: int) -> Figures:
    """Return the figures of a training that need not be measured: `batch_size` and `memory_size`,
    of all ranks together, `gamma` and `max_entropy` in nats.
    """
    known: Figures = {
        "batch_size": memory.batch_size * num_ranks,
        "memory_size": memory.memory_size * num_ranks,
    }
    if agent.gamma is not None:
        known["gamma"] = agent.gamma
    match agent.action_space:
        case spaces.Box(shape=shape):
            known["max_entropy"] = math.prod(shape) * math.log(2.0)
        case spaces.Discrete(n=choices) | spaces.MultiDiscrete(nvec=choices):
            known["max_entropy"] = float(np.log(choices).sum())
    return known
