"""Demonstrations beside what the policy does: kept apart, and mixed into each batch at a fixed share.

Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (RLPD), 2023 (arXiv:2302.02948), draw half
of each batch from demonstrations ("symmetric sampling"). Kept apart they are not overwritten by what the policy
does, and their share does not fade as that grows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np

from tmrl_like.base.factories import completed
from tmrl_like.errors import expect
from tmrl_like.replay.compressor import compressor_of
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.replay.crc import Rebuilt
from tmrl_like.replay.row_set import Array, Flags
from tmrl_like.replay.streams import as_context, info_of
from tmrl_like.types import TAKEN_OVER, ActionSource, Batch, Buffer, Observation, Sample, SampleCompressor
from tmrl_like.wire.spaces import Space

_IS_TAKEN_OVER = np.isin(list(ActionSource), TAKEN_OVER)  # by the number of a source
_REMEMBERED_STREAMS = 256


class WithDemonstrations(MemoryDataloading):
    """Two memories of one kind: one for what the policy does, one for demonstrations.

    Demonstrations are the samples of workers that run as experts (`run(expert=True)`, `--expert`), and a data set; and
    the steps that somebody drove who took over. These are among what the policy does as well: Luo et al., "Precise and
    Dexterous Robotic Manipulation via Human-in-the-Loop Reinforcement Learning" (HIL-SERL), 2024 (arXiv:2410.21845).
    Each batch holds both, the policy's first. While one memory is empty, batches come from the other alone.

    Attributes:
        own: what the policy does.
        demonstrations: the other one.
        share: of each batch that demonstrations make up.
    """

    handles_streams = True
    tunable = ("batch_size", "gamma", "shaping")

    def __init__(
        self,
        memory: Callable[..., MemoryDataloading],
        share: float = 0.5,
        demonstrations_path: str | os.PathLike[str] = "",
        demonstrations_size: int | None = None,
        held_out: float = 0.0,
        takeovers: bool = True,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        **options: Any,
    ) -> None:
        """Make both memories.

        Args:
            memory: makes each of them, e.g. `partial(ReplayMemory, act_buf_len=4, batch_size=256)`; its
                batch_size is that of both together.
            share: 0 to 1; 0.5 draws as many demonstrations as others.
            demonstrations_path: a data set (see `MemoryDataloading`); "": none.
            demonstrations_size: samples to keep of demonstrations; None: as many as of the others.
            held_out: share of the policy's episodes that training never draws from (see `ReplayMemory`).
            takeovers: whether steps of whoever took over from a policy are demonstrations.
            observation_space: of the environment, for both, if they take it.
            action_space: the same.
            options: the other arguments of `MemoryDataloading`, given to both, but `dataset_path` to the first alone.

        Raises:
            ConfigError: the share is not between 0 and 1, or no data set at `demonstrations_path`.
            CheckpointError: the data set cannot be read, or its samples do not fit.
        """
        expect(0.0 <= share <= 1.0, "share", share, "0 to 1")
        memory = completed(memory, observation_space=observation_space, action_space=action_space)
        own: MemoryDataloading = completed(memory, held_out=held_out)(**options)
        self.own = own
        size = own.memory_size if demonstrations_size is None else demonstrations_size
        self.demonstrations = memory(**options | {"memory_size": size, "dataset_path": demonstrations_path})
        self.share = float(share)
        self.gamma, self.shaping = own.gamma, own.shaping
        self.columns, self.mini_races, self.held_out = own.columns, own.mini_races, own.held_out
        self.handles_resets = own.handles_resets
        self._experts: set[str] = set()
        self._takeovers = takeovers
        self._past: dict[str, deque[Buffer]] = {}  # the newest of each stream: what leads to a takeover
        self._taken_over: dict[str, str] = {}  # streams that are taken over now, and their names there
        self._takeovers_so_far = 0
        preprocessors = own.obs_preprocessor, own.sample_preprocessor
        super().__init__(own.device, own.nb_steps, *preprocessors, own.memory_size, own.batch_size, "", own.crc_debug)

    @classmethod
    def compressor(
        cls, memory: Callable[..., MemoryDataloading] | None = None, **arguments: object
    ) -> SampleCompressor | None:
        return None if memory is None else compressor_of(memory)

    def compressed(self, obs: Observation) -> Observation | None:
        return self.own.compressed(obs)

    def append_buffer(self, buffer: Buffer) -> None:
        """Put the samples into the memory that they are for."""
        sources = _sources_of(buffer)
        if (sources == ActionSource.EXPERT).any():
            self._experts.add(buffer.stream)
        if buffer.stream in self._experts:
            self.demonstrations.append(buffer)
            return
        self.own.append(buffer)
        if self._takeovers:
            self._append_takeovers(buffer, _IS_TAKEN_OVER[sources])

    def _append_takeovers(self, buffer: Buffer, is_taken: Flags) -> None:
        """Give what somebody drove who took over to the demonstrations; `is_taken`: which samples that is, bool [N]."""
        stream, past = buffer.stream, self._past.pop(buffer.stream, deque())
        if stream in self._taken_over or is_taken.any():
            samples = [sample for one in (*past, buffer) for sample in one.memory]
            start = len(samples) - len(buffer)
            for taken, run in groupby(is_taken.tolist()):
                end = start + len(list(run))
                if taken:
                    self._append_driven(stream, samples[:start], samples[start:end])
                elif stream in self._taken_over:
                    self.demonstrations.flush(self._taken_over.pop(stream))
                start = end
        past.append(buffer)
        while sum(map(len, past)) - len(past[0]) > self.demonstrations.context_length:
            past.popleft()
        self._past[stream] = past
        if len(self._past) > _REMEMBERED_STREAMS:
            del self._past[next(iter(self._past))]

    def _append_driven(self, stream: str, past: list[Sample], driven: list[Sample]) -> None:
        """Append a takeover, or more of one. Each is a stream of its own there.

        Before it comes as much of its past as they look at, and no more, so that no whole transition ends there.
        """
        if stream not in self._taken_over:
            self._takeovers_so_far += 1
            self._taken_over[stream] = f"{stream}, takeover {self._takeovers_so_far}"
            context = past[-self.demonstrations.context_length - 1 :]
            self.demonstrations.append(Buffer([*map(as_context, context)], self._taken_over[stream]))
        self.demonstrations.append(Buffer(driven, self._taken_over[stream]))

    def flush(self, stream: str | None = None) -> None:
        self.own.flush(stream)
        self.demonstrations.flush(stream)

    def __len__(self) -> int:
        """Transitions of both; the policy's have the lower items."""
        return len(self.own) + len(self.demonstrations)

    def get_transition(self, item: int) -> Rebuilt:
        own = len(self.own)
        return self.own.get_transition(item) if item < own else self.demonstrations.get_transition(item - own)

    @property
    def ready(self) -> bool:
        return self.own.ready or self.demonstrations.ready

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.own.seed(seed)
        self.demonstrations.seed(seed + 1)

    def tune(self, **values: float) -> None:
        """As `Tunable`, in both memories."""
        self.own.tune(**values)
        self.demonstrations.tune(**values)
        super().tune(**values)

    def sample(self) -> Batch:
        demonstrated = round(self.share * self.batch_size) if self.own.ready else self.batch_size
        if not self.demonstrations.ready:
            demonstrated = 0
        parts = ((self.own, self.batch_size - demonstrated), (self.demonstrations, demonstrated))
        batches = []
        for memory, count in parts:
            if count:
                memory.batch_size = count
                batches.append(memory.sample())
        if len(batches) == 1:
            return batches[0]
        import torch  # here, where tensors are made: see `collate`

        return batches[0].map(lambda *parts: torch.cat(parts), *batches[1:])

    def sample_held_out(self) -> Batch | None:
        self.own.batch_size = self.batch_size
        return self.own.sample_held_out()


def _sources_of(buffer: Buffer) -> Array:
    """What chose the actions: uint8 [N]."""
    if buffer.blocks:
        return np.concatenate([block.timing.source for block in buffer.blocks])
    timings = [info_of(sample).timing for sample in buffer]
    return np.array([ActionSource.POLICY if timing is None else timing.source for timing in timings], np.uint8)
