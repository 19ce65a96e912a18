"""The replay memory that ships: samples as columns, batches by one gather per column.

Every frame, every other observation leaf and every action is stored once, in its own dtype, in a ring of
`memory_size` rows. Action buffers are rebuilt by walking back through the actions (see `lanes`), as the environment
filled them, across resets, with any number of workers taking turns. Stacks of frames are rebuilt by walking back
through the frames of the episode.

Not stored: `info`. Its contents do not come back from `get_transition`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay.collate import to_tensor
from tmrl_like.replay.columns import Array, Rows
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.replay.lanes import History, Lanes
from tmrl_like.replay.layout import DropHistory, FramePadding, FrameStack, largest_stack
from tmrl_like.replay.priorities import Priorities, Prioritised
from tmrl_like.replay.store import REW, RowBlock, Slices, Store, blocks_of
from tmrl_like.replay.transitions import AsStored, Rebuilder, Tensors
from tmrl_like.types import Batch, Block, Buffer, Info, Transition

_INT32_MAX = 2**31 - 1
_MOST_AT_ONCE, _MOST_BYTES_AT_ONCE = 8, 1 << 20


class ReplayMemory(MemoryDataloading):
    """A replay memory for any environment whose observations and actions are arrays and numbers.

    Use it with its own compressor on the worker: `compressor_of(memory_cls)`, which an experiment does by
    itself. It drops action buffers and the older frames of stacks; without either there is none.

    `len(memory)` counts whole transitions: those that end in a reset, or whose action buffer or stack of frames
    reaches back beyond what the memory has seen, are not among them.

    Preprocessors and CRC debugging go transition by transition, a hundred times slower than without. A
    preprocessor with an attribute `batched = True` is called once per batch instead: `obs_preprocessor` with
    the observation's structure of tensors [B, ...] (and, on the worker, with single observations),
    `sample_preprocessor` with six such arguments.

    The observation tensors of a batch are its own: changing one in place changes no other. While no samples come, small
    batches are drawn several at a time, which is quicker: finding rows takes longer than copying them.
    """

    handles_resets = True
    handles_streams = True

    def __init__(
        self,
        device: str = "cpu",
        *,
        memory_size: int = 1_000_000,
        act_buf_len: int = 0,
        frame_stack: FrameStack = 0,
        frame_padding: FramePadding = "reset",
        n_steps: int = 1,
        gamma: float | None = None,
        prioritised: Prioritised | None = None,
        scratch_dir: str | None = None,
        **options: Any,
    ) -> None:
        """Set up an empty memory; columns are reserved when the first samples arrive.

        Args:
            device: see `MemoryDataloading`.
            memory_size: rows of the ring: samples, those of resets included.
            act_buf_len: how many actions the environment appends to its observations; the compressor has
                dropped them. 0: none.
            frame_stack: which part of an observation is a stack of the last k frames, an array [k, ...], newest
                last; the compressor has kept the newest. 4: the observation itself, {"camera": 4} or {3: 4}: an
                item of a dict or tuple; 0: none.
            frame_padding: what the environment puts before an episode's first frame: "reset", that frame again,
                or "zero".
            n_steps: how many rewards a transition sums up (see `replay.transitions`). From 2 on `rew` is their
                discounted sum, next_obs, terminated and truncated are the last step's, and `Batch.discount`
                says what the value of next_obs counts.
            gamma: discount per step; needed for n_steps above 1, and then the agent's.
            prioritised: draw transitions by the agent's TD errors; None: uniformly.
            scratch_dir: a folder on a disk with room for the columns, for a memory that is larger than RAM. They are
                in files without names there, which are gone when the memory is. None: in RAM.
            options: the other arguments of `MemoryDataloading`.

        Raises:
            ConfigError: a number that cannot be, or no such folder.
        """
        if int(memory_size) > _INT32_MAX:
            raise ConfigError(f"memory_size is {memory_size}; it is at most {_INT32_MAX}")
        self.act_buf_len = int(act_buf_len)
        self.frame_stack = frame_stack
        self._compress = self.compressor(self.act_buf_len, frame_stack)  # checks both
        if frame_padding not in ("reset", "zero"):
            raise ConfigError(f"frame_padding is {frame_padding!r}; expected reset or zero")
        if n_steps < 1 or (n_steps > 1 and gamma is None) or not 0.0 <= (1.0 if gamma is None else gamma) <= 1.0:
            raise ConfigError(
                f"n_steps is {n_steps} and gamma {gamma}; the first is 1 or more, and above 1 it needs the agent's "
                "gamma, 0 to 1"
            )
        self.gamma = None if gamma is None else float(gamma)
        if scratch_dir is not None and not os.path.isdir(scratch_dir):
            raise ConfigError(f"there is no folder {scratch_dir}, which scratch_dir names")
        capacity = max(1, int(memory_size))
        histories = [History(self.act_buf_len, reset_fills=False)]
        if largest_stack(frame_stack) > 1:
            histories.append(History(largest_stack(frame_stack), reset_fills=True))
        self._priorities = None if prioritised is None else Priorities(capacity, prioritised)
        self._lanes = Lanes(capacity, *histories, looks_ahead=n_steps > 1, priorities=self._priorities)
        self._store = Store(capacity, self.act_buf_len, frame_stack, scratch_dir)
        self._originals: dict[int, Any] = {}  # CRC debugging: row -> what the environment produced
        self._rebuilder = Rebuilder(
            self._lanes, self._store, self._originals, self.act_buf_len, frame_padding, int(n_steps), self.gamma or 0.0
        )
        self._resets_only: list[Buffer] = []  # what came before the first step: columns need its dtypes
        self._drawn: list[Batch] = []  # and not given out yet
        self._at_once = 1  # batches to draw next
        super().__init__(device, memory_size=memory_size, **options)

    @classmethod
    def compressor(cls, act_buf_len: int = 0, frame_stack: FrameStack = 0, **arguments: Any) -> DropHistory | None:
        """The compressor for a memory with these arguments; those that do not matter to it are ignored."""
        return DropHistory(act_buf_len, frame_stack) if act_buf_len or frame_stack else None

    def compressed(self, obs: Any) -> Any:
        """What its own compressor leaves of an observation.

        Raises:
            MemoryContractError: the observation is not what `act_buf_len` and `frame_stack` say.
        """
        return obs if self._compress is None else self._compress(None, obs, 0.0, False, False, {})[1]

    def append_buffer(self, buffer: Buffer) -> None:
        """Store samples, all or none of them; columns of a packet are copied as columns.

        Raises:
            MemoryContractError: observations or actions change their structure, or are neither arrays nor numbers.
        """
        blocks = blocks_of(buffer)
        fields = self._store.fields or self._store.fields_for(blocks)
        if not fields:
            self._resets_only.append(buffer)
            return
        waiting = [(early.stream, block) for early in self._resets_only for block in blocks_of(early)]
        waiting += [(buffer.stream, block) for block in blocks]
        slices = [self._store.check(fields, block) for _, block in waiting]
        self._resets_only = []
        self._drawn, self._at_once = [], 1
        self._store.fields = fields
        for (stream, block), of_segments in zip(waiting, slices, strict=True):
            self._append_block(stream, block, of_segments)

    def _append_block(self, stream: str, block: Block | RowBlock, slices: Sequence[Slices]) -> None:
        """Store a block whose segments have been checked."""
        for of_fields in slices:
            if of_fields.rew is not None:
                self._store.fields[REW].widen(of_fields.rew)
        start = 0
        while start < len(block.is_reset):
            is_reset = block.is_reset[start : start + self._lanes.room]
            row, n = self._lanes.extend(stream, is_reset), len(is_reset)
            first = 0  # sample of the segment
            for segment, of_fields in zip(block.segments, slices, strict=True):
                self._store.write(row, n, segment, first - start, of_fields.leaves)
                first += segment.rows
            if self.crc_debug:
                originals = (getattr(sample.info, "original", None) for sample in block.samples()[start:])
                self._originals.update(zip(range(row, row + n), originals, strict=False))
            start += n

    @property
    def holds_samples(self) -> bool:
        return self._lanes.written > 0

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def ready(self) -> bool:
        return len(self) > 0

    def get_transition(self, item: int) -> Transition:
        """Rebuild one transition; bit for bit what a batch holds at this item.

        Raises:
            IndexError: not 0 <= item < len(self).
        """
        if not 0 <= item < len(self):
            raise IndexError(f"item {item} of a memory with {len(self)} transitions")
        row = int(self._lanes.whole[item])
        transition = self._rebuilder.transitions(np.array([row]), AsStored())
        return Transition._make((*transition, Info(original=self._rebuilder.original(row))))

    def sample(self) -> Batch:
        """Draw one batch, by one gather per column unless it must go transition by transition.

        Raises:
            MemoryContractError: there is no whole transition yet (see `ready`).
            PipelineMismatchError: CRC debugging found a difference.
        """
        if not len(self):
            return super().sample()
        if self._priorities is None:
            if not self._drawn or len(self._drawn[-1].rew) != self.batch_size:
                self._drawn = self._draw_several()
            return self._drawn.pop()
        rows, weights = self._priorities.draw(self.rng, self.batch_size, len(self))
        batch = self._batch(self._lanes.items_of(rows))
        batch.weight, batch.drawn = to_tensor(weights, self.device), self._lanes.numbers_of(rows)
        return batch

    def feed_back(self, drawn: Any, td_error: Any) -> None:
        """Draw transitions by these errors from now on; those that the ring has overwritten since do not count.

        Raises:
            MemoryContractError: not one error per transition.
        """
        if self._priorities is None:
            return
        errors = td_error.detach().cpu().numpy() if hasattr(td_error, "detach") else np.asarray(td_error)
        if errors.shape != drawn.shape:
            raise MemoryContractError(
                f"td_error has the shape {errors.shape}; expected {drawn.shape}, one per transition"
            )
        is_there = drawn >= self._lanes.oldest
        self._priorities.update(drawn[is_there] % self._lanes.capacity, errors[is_there])

    def _draw_several(self) -> list[Batch]:
        """Draw a batch, and with each call twice as many, up to a moderate size."""
        count = self._at_once
        batch = self._batch(np.concatenate([np.asarray(self.sample_indices(), np.intp) for _ in range(count)]))
        parts = (*batch, batch.discount)
        size_bytes = sum(leaf.nbytes for leaf in tree.leaves(parts) if leaf is not None)
        is_plain = not (self.crc_debug or self.obs_preprocessor or self.sample_preprocessor)
        if is_plain and count < _MOST_AT_ONCE and 2 * size_bytes <= _MOST_BYTES_AT_ONCE:
            self._at_once = 2 * count
        leaves = [[None] * count if leaf is None else leaf.split(self.batch_size) for leaf in tree.leaves(parts)]
        batches = [tree.fill(parts, iter(of_batch)) for of_batch in zip(*leaves, strict=True)]
        return [Batch(*six, discount=discount) for *six, discount in batches]

    def _batch(self, items: Rows) -> Batch:
        batch = self._rebuilder.transitions(self._lanes.whole.take(items).astype(np.intp), Tensors(self.device))
        preprocessors = [f for f in (self.obs_preprocessor, self.sample_preprocessor) if f is not None]
        if self.crc_debug or not all(getattr(f, "batched", False) for f in preprocessors):
            one_by_one = self._batch_of([self[item] for item in items.tolist()])
            one_by_one.discount = batch.discount
            return one_by_one
        if not preprocessors:
            return batch
        return batch._replace(**dict(zip(Batch._fields, self._preprocessed(tuple(batch)), strict=True)))

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._drawn, self._at_once = [], 1

    def sample_indices(self) -> Array:
        """Draw `batch_size` items, uniformly or by priority: int64 [batch_size]."""
        if self._priorities is not None:
            return self._lanes.items_of(self._priorities.draw(self.rng, self.batch_size, len(self))[0])
        return self.rng.integers(0, len(self), self.batch_size)
