"""The replay memory that ships: samples as columns, batches by one gather per column.

Every frame, every other observation leaf and every action is stored once, in its own dtype, in a ring of
`memory_size` rows. Action buffers are rebuilt by walking back through the actions (see `lanes`), as the environment
filled them, across resets, with any number of workers taking turns. Stacks of frames are rebuilt by walking back
through the frames of the episode.

Of `info` the items that `columns` names are stored, in columns as well; nothing else of it comes back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, expect
from tmrl_like.replay.columns import Array, Rows
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.replay.lanes import History, Lanes
from tmrl_like.replay.layout import DropHistory, FramePadding, FrameStack, largest_stack
from tmrl_like.replay.mini_races import MiniRaces
from tmrl_like.replay.row_set import RowSet
from tmrl_like.replay.store import COLUMNS, REW, STEPS_TO_END, RowBlock, Slices, Store, blocks_of
from tmrl_like.replay.transitions import AsStored, Rebuilder, Tensors
from tmrl_like.types import Batch, Block, Buffer, Info, Transition
from tmrl_like.wire.rows import EPISODES

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
    tunable = ("batch_size", "gamma", "shaping")

    def __init__(
        self,
        device: str = "cpu",
        *,
        memory_size: int = 1_000_000,
        act_buf_len: int = 0,
        frame_stack: FrameStack = 0,
        frame_padding: FramePadding = "reset",
        columns: Sequence[str] = (),
        n_steps: int = 1,
        gamma: float | None = None,
        greedy_only: bool = False,
        shaping: float | None = None,
        mini_races: MiniRaces | None = None,
        time_step_duration: float | None = None,
        held_out: float = 0.0,
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
            columns: items of `info`, arrays or numbers, that are kept as everything else is and come back in
                `Batch.columns` and `Transition.info`: of the sample that the action led to. Every step must bring them;
                zeros stand for what the samples of a reset do not bring. "steps_to_end" is counted here: the steps
                from the older observation to the one that terminated the episode, int32; 2^31 - 1 where it did not
                terminate, or has not yet.
            n_steps: how many rewards a transition sums up (see `replay.transitions`). From 2 on `rew` is their
                discounted sum, next_obs, terminated and truncated are the last step's, and `Batch.discount`
                says what the value of next_obs counts.
            gamma: discount per step; needed for n_steps above 1, shaping and mini-races, and then the agent's.
            greedy_only: fewer steps are summed up where one of them, not the first, was not the policy's best: info has
                "greedy" then, which is among the columns.
            shaping: weight of the potentials in info's "potential", which is among the columns then (see
                `replay.transitions`); 0: they are kept and do not count. None: there are none.
            mini_races: put each transition at a random moment of a race of a few seconds, whose end is the end of all
                that counts (see `replay.mini_races`); the agent must take `Batch.time_left`. None: there are no races.
            time_step_duration: of the environment, in seconds, for mini-races in seconds; None: it is not known.
            held_out: share of the episodes, 0 to below 1, that training never draws from: `sample_held_out` does. Which
                they are depends on their numbers in their lane alone: with 0.05 the 10th, the 30th, …
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
        looks_ahead = n_steps > 1 or shaping is not None or mini_races is not None
        if n_steps < 1 or (looks_ahead and gamma is None) or not 0.0 <= (1.0 if gamma is None else gamma) <= 1.0:
            raise ConfigError(
                f"n_steps is {n_steps} and gamma {gamma}; the first is 1 or more, and above 1, with shaping and with "
                "mini-races the memory needs the agent's gamma, 0 to 1"
            )
        self.gamma = None if gamma is None else float(gamma)
        self.n_steps = int(n_steps)
        self.greedy_only = greedy_only
        expect(shaping is None or math.isfinite(shaping), "shaping", shaping, "a finite number")
        self.shaping = shaping
        wanted = (*columns, *["greedy"] * greedy_only, *["potential"] * (shaping is not None))
        names = dict.fromkeys(wanted)
        self.columns = tuple(sorted(names, key=STEPS_TO_END.__eq__))  # that one comes last
        self.mini_races = mini_races
        expect(0.0 <= held_out < 1.0, "held_out", held_out, "0 to below 1")
        self.held_out = float(held_out)
        counted = np.floor(np.arange(EPISODES + 1) * self.held_out + 0.5)
        self._is_held_out = counted[1:] > counted[:-1]  # by the number of an episode
        self._held_out_rng = np.random.default_rng()
        self._race = 0 if mini_races is None else mini_races.length(time_step_duration)
        if scratch_dir is not None and not os.path.isdir(scratch_dir):
            raise ConfigError(f"there is no folder {scratch_dir}, which scratch_dir names")
        capacity = max(1, int(memory_size))
        histories = [History(self.act_buf_len, reset_fills=False)]
        self.context_length = max(1, self.act_buf_len, largest_stack(frame_stack)) - 1
        if largest_stack(frame_stack) > 1:
            histories.append(History(largest_stack(frame_stack), reset_fills=True))
        self._lanes = Lanes(capacity, *histories, n_steps=self.n_steps, holds_out=self.held_out > 0)
        self._store = Store(capacity, self.act_buf_len, frame_stack, scratch_dir, self.columns)
        self._originals: dict[int, Any] = {}  # CRC debugging: row -> what the environment produced
        self._rebuilder = Rebuilder(
            self._lanes,
            self._store,
            self._originals,
            self.act_buf_len,
            frame_padding,
            self.n_steps,
            self.columns,
            self._powers(),
        )
        self._resets_only: list[Buffer] = []  # what came before the first step: columns need its dtypes
        self._drawn: list[Batch] = []  # and not given out yet
        self._at_once = 1  # batches to draw next
        super().__init__(device, memory_size=memory_size, **options)

    @classmethod
    def compressor(cls, act_buf_len: int = 0, frame_stack: FrameStack = 0, **arguments: Any) -> DropHistory | None:
        """The compressor for a memory with these arguments; those that do not matter to it are ignored."""
        return DropHistory(act_buf_len, frame_stack) if act_buf_len or frame_stack else None

    def tune(self, **values: float) -> None:
        """As `Tunable`; from the next batch on. `shaping` can change where the memory was made with one."""
        gamma = values.get("gamma", 0.0)
        expect(0.0 <= gamma <= 1.0, "gamma", gamma, "0 to 1")
        if "shaping" in values:
            expect(self.shaping is not None, "shaping", values["shaping"], "none: the memory has kept no potentials")
            expect(math.isfinite(values["shaping"]), "shaping", values["shaping"], "a finite number")
        super().tune(**values)
        self._rebuilder.powers = self._powers()
        self._drawn, self._at_once = [], 1

    def _powers(self) -> Array:
        """gamma^k, float64 [n + 1]."""
        return np.array([(self.gamma or 0.0) ** k for k in range(self.n_steps + 1)])

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
        blocks = blocks_of(buffer, self.columns)
        fields = self._store.fields or self._store.fields_for(blocks)
        if not fields:
            self._resets_only.append(buffer)
            return
        waiting = [(early.stream, block) for early in self._resets_only for block in blocks_of(early, self.columns)]
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
            n = len(is_reset)
            is_held_out = (
                self._is_held_out.take(block.episode[start : start + n], mode="wrap") if self.held_out else None
            )
            row = self._lanes.extend(stream, is_reset, is_held_out)
            first = 0  # sample of the segment
            for segment, of_fields in zip(block.segments, slices, strict=True):
                self._store.write(row, n, segment, first - start, of_fields.leaves)
                first += segment.rows
            if self.crc_debug:
                originals = (getattr(sample.info, "original", None) for sample in block.samples()[start:])
                self._originals.update(zip(range(row, row + n), originals, strict=False))
            if STEPS_TO_END in self.columns:
                self._count_down(row, n)
            if self._lanes.steps is not None:
                if self.greedy_only:
                    greedy = self._store.numbers(COLUMNS + self.columns.index("greedy"), row, n)
                    is_reset = is_reset | (greedy == 0)
                self._lanes.count_steps(stream, is_reset)
            start += n

    def _count_down(self, row: int, n: int) -> None:
        """Say in the rows of the episodes that terminate in the n newest rows how far the end was."""
        lanes, array, newest = self._lanes, self._store.fields[-1].columns[0].array, self._lanes.written - 1
        for end in (row + np.flatnonzero(self._store.numbers(REW + 1, row, n))).tolist():
            at, steps = end, 1
            while not lanes.is_reset[at]:
                array[at] = steps
                before = int(lanes.parent[at])
                if (newest - before) % lanes.capacity <= (newest - at) % lanes.capacity:  # the ring has overwritten it
                    break
                at, steps = before, steps + 1

    @property
    def holds_samples(self) -> bool:
        return self._lanes.written > 0

    def __len__(self) -> int:
        return len(self._lanes.training)

    @property
    def ready(self) -> bool:
        return len(self) > 0

    def get_transition(self, item: int) -> Transition:
        """Rebuild one transition; bit for bit what a batch holds at this item, without potentials and mini-races.

        Raises:
            IndexError: not 0 <= item < len(self).
        """
        if not 0 <= item < len(self):
            raise IndexError(f"item {item} of a memory with {len(self)} transitions")
        row = int(self._lanes.training.rows[item])
        transition = self._rebuilder.transitions(np.array([row]), AsStored())
        return Transition._make((*transition, Info(transition.columns, original=self._rebuilder.original(row))))

    def sample(self) -> Batch:
        """Draw one batch, by one gather per column unless it must go transition by transition.

        Raises:
            MemoryContractError: there is no whole transition yet (see `ready`).
            PipelineMismatchError: CRC debugging found a difference.
        """
        if not len(self):
            return super().sample()
        if not self._drawn or len(self._drawn[-1].rew) != self.batch_size:
            self._drawn = self._draw_several()
        return self._drawn.pop()

    def _draw_several(self) -> list[Batch]:
        """Draw a batch, and with each call twice as many, up to a moderate size."""
        count = self._at_once
        drawn = [(np.asarray(self.sample_indices(), np.intp), self._draw_left(self.rng)) for _ in range(count)]
        items, left = zip(*drawn, strict=True)
        batch = self._batch(np.concatenate(items), np.concatenate(left) if self._race else None)
        size_bytes = sum(leaf.nbytes for leaf in tree.leaves(batch.parts) if leaf is not None)
        is_plain = not (self.crc_debug or self.obs_preprocessor or self.sample_preprocessor)
        if is_plain and count < _MOST_AT_ONCE and 2 * size_bytes <= _MOST_BYTES_AT_ONCE:
            self._at_once = 2 * count
        leaves = [[None] * count if leaf is None else leaf.split(self.batch_size) for leaf in tree.leaves(batch.parts)]
        return [Batch.of(tree.fill(batch.parts, iter(of_batch))) for of_batch in zip(*leaves, strict=True)]

    def sample_held_out(self) -> Batch | None:
        """Draw a batch of held-out episodes, uniformly; None: there is no transition of them yet."""
        held_out = self._lanes.held_out
        if held_out is None or not len(held_out):
            return None
        items = self._held_out_rng.integers(0, len(held_out), self.batch_size)
        return self._batch(items, self._draw_left(self._held_out_rng), held_out)

    def _draw_left(self, rng: np.random.Generator) -> Rows | None:
        """The steps that are left of the race of each transition of a batch; None: there are no races."""
        return None if self.mini_races is None else self.mini_races.draw(rng, self.batch_size, self._race)

    def _batch(self, items: Rows, left: Rows | None = None, held_out: RowSet | None = None) -> Batch:
        rows = (self._lanes.training if held_out is None else held_out).rows.take(items).astype(np.intp)
        shaping = self.shaping or 0.0
        batch = self._rebuilder.transitions(rows, Tensors(self.device), shaping, left, self._race)
        preprocessors = [f for f in (self.obs_preprocessor, self.sample_preprocessor) if f is not None]
        if not self.crc_debug and all(getattr(f, "batched", False) for f in preprocessors):
            six = self._preprocessed(tuple(batch)) if preprocessors else batch
        else:
            for item in items.tolist() if self.crc_debug and held_out is None else ():
                self._checked(item)
            lefts = [None] * len(rows) if left is None else np.split(left, len(rows))
            plain = [
                self._rebuilder.transitions(row, AsStored(), shaping, one, self._race)
                for row, one in zip(np.split(rows, len(rows)), lefts, strict=True)
            ]
            six = self._batch_of([self._preprocessed(tuple(transition)) for transition in plain])
        return batch._replace(**dict(zip(Batch._fields, six, strict=True)))

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._held_out_rng = np.random.default_rng((seed, 1))
        self._drawn, self._at_once = [], 1

    def sample_indices(self) -> Array:
        """Draw `batch_size` items, uniformly: int64 [batch_size]."""
        return self.rng.integers(0, len(self), self.batch_size)
