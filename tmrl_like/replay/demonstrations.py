"""Demonstrations, kept apart from what the policy does and mixed into each batch at a fixed share.

Ball et al., "Efficient Online Reinforcement Learning with Offline Data" (RLPD), 2023
(arXiv:2302.02948), draw half of each batch from demonstrations ("symmetric sampling"). Kept apart,
they are not overwritten by the policy's samples, and their share does not fade as those accumulate.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar

import numpy as np

from tmrl_like.base.factories import completed, taken_apart
from tmrl_like.errors import expect
from tmrl_like.replay.compressor import compressor_of
from tmrl_like.replay.contract import MemoryDataloading, MemoryFactory
from tmrl_like.replay.crc import Rebuilt
from tmrl_like.replay.row_set import Array, Flags
from tmrl_like.replay.streams import NO_TIMING, as_context, info_of
from tmrl_like.types import TAKEN_OVER, ActionSource, Batch, Buffer, Observation, SampleCompressor
from tmrl_like.wire.spaces import Space

_IS_TAKEN_OVER = np.isin(list(ActionSource), TAKEN_OVER)  # by the number of a source
_REMEMBERED_STREAMS = 256


@dataclass
class _Remembered:
    """What is remembered of a stream.

    Attributes:
        is_expert: whether all of it is demonstrations.
        newest: its newest samples, which lead up to a takeover.
        takeover: name of the stream that the demonstrations of the current takeover form; empty:
            there is no takeover.
    """

    is_expert: bool = False
    newest: deque[Buffer] = field(default_factory=deque)
    takeover: str = ""


class WithDemonstrations(MemoryDataloading):
    """Two memories of one kind: one for what the policy does, one for demonstrations.

    Demonstrations are the samples of workers that run as experts (`run(expert=True)`, `--expert`),
    those of a data set, and the steps of takeovers. The last are also kept as part of what the
    policy does: Luo et al., "Precise and Dexterous Robotic Manipulation via Human-in-the-Loop
    Reinforcement Learning" (HIL-SERL), 2024 (arXiv:2410.21845). Each batch holds both, the policy's
    first. While one memory is empty, batches come from the other alone.

    Attributes:
        own: the memory of what the policy does.
        demonstrations: the memory of the demonstrations.
        share: share of each batch that demonstrations make up.
        takeovers: whether the steps of takeovers are demonstrations.
    """

    handles_streams = True
    tunable: ClassVar[tuple[str, ...]] = ("batch_size", "gamma", "shaping")

    def __init__(
        self,
        memory: MemoryFactory,
        share: float = 0.5,
        demonstrations_path: str | os.PathLike[str] | None = "",
        held_out: float = 0.0,
        takeovers: bool = True,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        **options: Any,
    ) -> None:
        """Make both memories.

        Args:
            memory: makes each of them, e.g. `partial(ReplayMemory, act_buf_len=4, batch_size=256)`;
                its batch_size is that of both together.
            share: 0 to 1, on average; with 0.5, half of each batch is demonstrations.
            demonstrations_path: a data set of demonstrations (see `MemoryDataloading`); "": none.
            held_out: share of the policy's episodes that is never drawn for training (see
                `ReplayMemory`), except for steps of takeovers, as demonstrations.
            takeovers: whether the steps of takeovers are demonstrations.
            observation_space: the environment's observation space, for both memories, if they take
                it.
            action_space: the environment's action space, likewise.
            options: the other arguments of `MemoryDataloading`, for both memories; `dataset_path`
                is for the first only.

        Raises:
            ConfigError: the share is not between 0 and 1, or there is no data set at
                `demonstrations_path`.
            CheckpointError: the data set cannot be read, or its samples do not fit.
        """
        expect(0.0 <= share <= 1.0, "share", share, "0 to 1")
        memory = completed(memory, observation_space=observation_space, action_space=action_space)
        own: MemoryDataloading = completed(memory, held_out=held_out)(**options)
        self.own = own
        apart: dict[str, Any] = {"dataset_path": demonstrations_path}
        if "held_out" in taken_apart(memory)[1]:
            apart["held_out"] = 0.0
        self.demonstrations = memory(**options | apart)
        self.share = float(share)
        self.gamma = own.gamma
        self.shaping = own.shaping
        self.columns = own.columns
        self.mini_races = own.mini_races
        self.held_out = own.held_out
        self.handles_resets = own.handles_resets
        self.takes_text = own.takes_text
        self.tunable = tuple(name for name in type(self).tunable if name in own.tunable)  # type: ignore[misc]
        self.takeovers = takeovers
        self._takeovers_so_far = 0
        self._remembered: dict[str, _Remembered] = {}  # least recently used first
        super().__init__(
            own.device,
            own.nb_steps,
            own.obs_preprocessor,
            own.sample_preprocessor,
            own.memory_size,
            own.batch_size,
            "",
            own.crc_debug,
        )
        self._share_rng()

    @classmethod
    def compressor(
        cls, memory: MemoryFactory | None = None, **arguments: object
    ) -> SampleCompressor | None:
        return None if memory is None else compressor_of(memory)

    def compressed(self, obs: Observation) -> Observation | None:
        return self.own.compressed(obs)

    def append_buffer(self, buffer: Buffer) -> None:
        """Put the samples into the memory, or memories, that they belong to."""
        stream = self._remembered.pop(buffer.stream, None) or _Remembered()
        self._remembered[buffer.stream] = stream
        if len(self._remembered) > _REMEMBERED_STREAMS:
            del self._remembered[next(iter(self._remembered))]
        sources = _sources_of(buffer)
        stream.is_expert |= bool((sources == ActionSource.EXPERT).any())
        if stream.is_expert:
            self.demonstrations.append(buffer)
            return
        self.own.append(buffer)
        if self.takeovers:
            self._append_takeovers(stream, buffer, _IS_TAKEN_OVER[sources])

    def _append_takeovers(self, stream: _Remembered, buffer: Buffer, is_taken: Flags) -> None:
        """Add the steps of takeovers to the demonstrations; `is_taken`, bool [N], marks the samples
        of `buffer` that are such steps.
        """
        context_length = self.demonstrations.context_length
        if stream.takeover or is_taken.any():
            samples = [sample for one in (*stream.newest, buffer) for sample in one.memory]
            start = len(samples) - len(buffer)
            for taken, run in groupby(is_taken.tolist()):
                end = start + len(list(run))
                if taken and not stream.takeover:
                    self._takeovers_so_far += 1
                    stream.takeover = f"{buffer.stream}, takeover {self._takeovers_so_far}"
                    # as much as a transition looks back on, and no more: none may end in it
                    context = map(as_context, samples[max(0, start - context_length - 1) : start])
                    self.demonstrations.append(Buffer([*context], stream.takeover))
                if taken:
                    self.demonstrations.append(Buffer(samples[start:end], stream.takeover))
                elif stream.takeover:
                    self.demonstrations.flush(stream.takeover)
                    stream.takeover = ""
                start = end
        stream.newest.append(buffer)
        while sum(map(len, stream.newest)) - len(stream.newest[0]) > context_length:
            stream.newest.popleft()

    def flush(self, stream: str | None = None) -> None:
        self.own.flush(stream)
        self.demonstrations.flush(stream)

    def __len__(self) -> int:
        """Return the number of transitions in both memories; the policy's come first."""
        return len(self.own) + len(self.demonstrations)

    def get_transition(self, item: int) -> Rebuilt:
        own = len(self.own)
        return (
            self.own.get_transition(item)
            if item < own
            else self.demonstrations.get_transition(item - own)
        )

    @property
    def holds_samples(self) -> bool:
        return self.own.holds_samples or self.demonstrations.holds_samples

    @property
    def ready(self) -> bool:
        return self.own.ready or self.demonstrations.ready

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.own.seed(seed)
        self.demonstrations.seed(seed + 1)
        self._share_rng()

    def _share_rng(self) -> None:
        """Let both memories draw with this one's generator, which a checkpoint holds."""
        self.own.rng = self.demonstrations.rng = self.rng

    def tune(self, **values: float) -> None:
        """Change values in both memories, as `Tunable.tune` does."""
        self.own.tune(**values)
        self.demonstrations.tune(**values)
        super().tune(**values)

    def sample(self) -> Batch:
        demonstrated = self.batch_size
        if self.own.ready:  # one more in some batches, so that the mean is the share
            demonstrated = int(self.share * self.batch_size + self.rng.random())
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
    """Return what chose each action: uint8 [N]."""
    if buffer.blocks:
        return np.concatenate([block.timing.source for block in buffer.blocks])
    timings = [info_of(sample).timing or NO_TIMING for sample in buffer]
    return np.array([timing.source for timing in timings], np.uint8)
