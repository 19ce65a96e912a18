"""The included replay memory: samples are stored as columns, and a batch takes one gather per
column.

Every frame, every other observation leaf and every action is stored once, in its own dtype, in a
ring of `memory_size` rows. Action buffers are rebuilt by walking back through the actions (see
`row_index`), as the environment filled them: across resets, and with any number of workers taking
turns. Stacks of frames are rebuilt by walking back through the frames of the episode.

Of `info`, the items named in `columns` are stored, in columns as well; the rest is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from tmrl_like.errors import expect
from tmrl_like.replay.collate import Six
from tmrl_like.replay.compressor import DropHistory, FrameStack
from tmrl_like.replay.contract import MemoryDataloading, is_batched, with_six
from tmrl_like.replay.replay_options import ReplayOptions
from tmrl_like.replay.row_index import RowIndex
from tmrl_like.replay.row_set import Rows, RowSet
from tmrl_like.replay.sample_check import item
from tmrl_like.replay.streams import info_of
from tmrl_like.replay.table import NOT_FINISHED, STEPS_TO_END, Arrival, Places, Table
from tmrl_like.replay.transitions import Rebuilder
from tmrl_like.types import Batch, Buffer, Info, Observation, Transition
from tmrl_like.wire.rows import EPISODES
from tmrl_like.wire.spaces import Space

_MOST_AT_ONCE = 8
_MOST_BYTES_AT_ONCE = 1 << 20


class ReplayMemory(MemoryDataloading):
    """A replay memory for any environment whose observations and actions are arrays and numbers.

    Use it with its own compressor on the worker, `compressor_of(memory_cls)`; an experiment does so
    by itself. The compressor drops action buffers and the older frames of stacks; a memory with
    neither has none.

    `len(memory)` counts whole transitions. It excludes those that end in a reset, and those whose
    action buffer or stack of frames reaches back beyond the samples that the memory has seen.

    Preprocessors and CRC debugging handle transitions one by one, a hundred times slower than
    without. If those that there are have an attribute `batched = True`, each is called once per
    batch instead: `obs_preprocessor` with the observation's structure of tensors [B, ...] (and, on
    the worker, with single observations), `sample_preprocessor` with six such arguments.

    The observation tensors of a batch are its own: changing one in place changes no other. While no
    samples arrive, small batches are drawn several at a time, which is faster, because finding rows
    takes longer than copying them.
    """

    handles_resets = True
    handles_streams = True
    tunable = ("batch_size", "gamma", "shaping")
    page = ReplayOptions

    def __init__(
        self,
        device: str = "cpu",
        *,
        memory_size: int = 1_000_000,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        **options: Any,
    ) -> None:
        """Set up an empty memory; columns are reserved when the first samples arrive.

        Args:
            device: see `MemoryDataloading`.
            memory_size: number of rows of the ring: samples, including those of resets.
            observation_space: the environment's observation space; a data set of other shapes is
                refused. A training passes it.
            action_space: the environment's action space, for the same purpose.
            options: those of `ReplayOptions`, and the other arguments of `MemoryDataloading`.

        Raises:
            ConfigError: a number is out of range, or there is no data set.
            CheckpointError: the data set cannot be read, or does not fit the spaces.
        """
        expect(memory_size <= 2**31 - 1, "memory_size", memory_size, "at most 2^31 - 1")
        own = [field.name for field in fields(ReplayOptions) if field.name in options]
        self.options = page = ReplayOptions(**{name: options.pop(name) for name in own})
        is_one_step = getattr(options.get("sample_preprocessor"), "one_step", False)
        reason = "1: the sample_preprocessor makes rewards of one step"
        expect(page.n_steps == 1 or not is_one_step, "n_steps", page.n_steps, reason)
        self.gamma = page.gamma
        self.shaping = page.shaping
        self.columns = tuple(name for name in page.kept if name != STEPS_TO_END)
        self.mini_races = page.mini_races
        self.held_out = page.held_out
        self.context_length = max(1, page.act_buf_len, page.frames) - 1
        self._race_steps = page.race_steps
        counted = np.floor(np.arange(EPISODES + 1) * self.held_out + 0.5)
        self._is_held_out = counted[1:] > counted[:-1]  # by the number of an episode
        is_some = not self.held_out or 0 < self._is_held_out.sum() < EPISODES
        expect(is_some, "held_out", self.held_out, "0, or 0.005 to below 0.995")
        self._held_out_rng = np.random.default_rng()
        self._index = RowIndex(max(1, int(memory_size)), page)
        self._rebuilder: Rebuilder | None = (
            None  # None before the first step, whose dtypes it needs
        )
        self._resets_only: list[Arrival] = []  # what arrived before the first step
        # CRC debugging: row -> what the environment produced
        self._originals: dict[int, Six | None] = {}
        self._drawn: list[Batch] = []  # ahead, and not returned yet
        self._at_once = 1  # batches to draw next
        self.observation_space = observation_space
        self.action_space = action_space
        super().__init__(device, memory_size=memory_size, **options)

    @classmethod
    def compressor(
        cls, act_buf_len: int = 0, frame_stack: FrameStack = 0, **arguments: Any
    ) -> DropHistory | None:
        """Return the compressor for a memory with these arguments, or None if it needs none;
        arguments that do not matter to it are ignored.
        """
        return DropHistory(act_buf_len, frame_stack) if act_buf_len or frame_stack else None

    def tune(self, **values: float) -> None:
        """Change values, as `Tunable.tune` does, from the next batch on. `shaping` can change only
        if the memory was made with one.
        """
        is_kept = "shaping" not in values or self.shaping is not None
        reason = "none: the memory has kept no potentials"
        expect(is_kept, "shaping", values.get("shaping"), reason)
        weights: dict[str, Any] = {
            name: values[name] for name in ("gamma", "shaping") if name in values
        }
        replace(self.options, **weights)  # raises if one is out of range
        super().tune(**values)
        self._drawn = []
        self._at_once = 1

    def compressed(self, obs: Observation) -> Observation:
        """Return what the memory's own compressor leaves of an observation.

        Raises:
            MemoryContractError: the observation does not match `act_buf_len` and `frame_stack`.
        """
        return DropHistory(self.options.act_buf_len, self.options.frame_stack).reduced(obs)

    def append_buffer(self, buffer: Buffer) -> None:
        """Store all of the samples, or none; columns of a packet are copied as columns.

        Raises:
            MemoryContractError: observations or actions change their structure, or hold something
                other than arrays and numbers.
        """
        arrivals = [*self._resets_only, Arrival(buffer, self.columns)]
        rebuilder = self._rebuilder
        if rebuilder is None:
            steps = (segment for segment, only_resets in arrivals[-1].segments if not only_resets)
            first = next(steps, None)
            if first is None:
                self._resets_only = arrivals
                return
            table = Table(first.schema, self._index.capacity, self.options)
            rebuilder = Rebuilder(table, self._index, self.options)
        fits = [
            [rebuilder.table.places_in(segment.schema, resets) for segment, resets in one.segments]
            for one in arrivals
        ]
        self._rebuilder = rebuilder
        self._resets_only = []
        self._drawn = []
        self._at_once = 1
        for arrival, of_segments in zip(arrivals, fits, strict=True):
            self._append(rebuilder.table, arrival, of_segments)

    def _append(self, table: Table, arrival: Arrival, places: Sequence[Places]) -> None:
        """Store samples that have been checked."""
        is_held_out = self._is_held_out.take(arrival.episode, mode="wrap")
        start = 0
        while start < len(arrival.is_reset):
            piece = slice(start, start + self._index.room)
            begins = arrival.is_reset[piece]
            n = len(begins)
            row = self._index.extend(
                arrival.buffer.stream, begins, is_held_out[piece], arrival.is_context[piece]
            )
            table.write(row, n, arrival, start, places)
            if self.crc_debug:
                for at, sample in enumerate(arrival.buffer.memory[piece], start=row):
                    self._originals[at] = info_of(sample).original
            if STEPS_TO_END in self.options.columns:
                self._count_down(table, row, n)
            if self.options.greedy_only:
                begins = begins | (table.numbers(item("greedy"), row, n) == 0)
            self._index.count_steps(row, begins)
            start += n

    def _count_down(self, table: Table, row: int, n: int) -> None:
        """For each episode that terminates in the n newest rows, write into its rows how far the
        end was.
        """
        to_end = table.fields[item(STEPS_TO_END)].columns[0].array
        to_end[row : row + n] = NOT_FINISHED
        for end in (row + np.flatnonzero(table.numbers("terminated", row, n))).tolist():
            for steps, at in enumerate(self._index.back_to_reset(end), start=1):
                to_end[at] = steps

    @property
    def holds_samples(self) -> bool:
        return self._rebuilder is not None

    def __len__(self) -> int:
        return len(self._index.training)

    def get_transition(self, item: int) -> Transition:
        """Rebuild one transition: bit for bit what a batch holds at this item, but without
        potentials and mini-races.

        Raises:
            IndexError: unless 0 <= item < len(self).
        """
        if self._rebuilder is None or not 0 <= item < len(self):
            raise IndexError(f"item {item} of a memory with {len(self)} transitions")
        row = int(self._index.training.rows[item])
        gamma = self.gamma or 0.0
        (transition,) = self._rebuilder.batches(np.array([[row]]), None, gamma)
        original = self._rebuilder.original(row, self._originals, gamma)
        return Transition._make((*transition, Info(transition.columns, original=original)))

    def sample(self) -> Batch:
        """Draw one batch, with one gather per column unless transitions must be handled one by one.

        Raises:
            MemoryContractError: there is no whole transition yet (see `ready`).
            PipelineMismatchError: CRC debugging found a difference.
        """
        if self._rebuilder is None or not len(self):
            return super().sample()
        if not self._drawn or len(self._drawn[-1].rew) != self.batch_size:
            self._drawn = self._draw_several(self._rebuilder.table.row_bytes)
        return self._drawn.pop()

    def _draw_several(self, row_bytes: int) -> list[Batch]:
        """Draw batches. If no samples arrived since the last call, draw twice as many as then, up
        to a moderate size.
        """
        items = np.array([self.sample_indices() for _ in range(self._at_once)])
        for checked in items.ravel().tolist() if self.crc_debug else ():
            self._checked(checked)
        if not (self.crc_debug or self.obs_preprocessor or self.sample_preprocessor):
            most = _MOST_BYTES_AT_ONCE // (row_bytes * self.batch_size)
            self._at_once = max(1, min(2 * self._at_once, _MOST_AT_ONCE, most))
        return self._batches(self._index.training, items, self.rng)

    def sample_held_out(self) -> Batch | None:
        """Draw a batch of held-out episodes, uniformly; return None if they have no transition
        yet.
        """
        held_out = self._index.held_out
        if not len(held_out):
            return None
        items = self._held_out_rng.integers(0, len(held_out), (1, self.batch_size))
        (batch,) = self._batches(held_out, items, self._held_out_rng)
        return batch

    def _batches(self, among: RowSet, items: Rows, rng: np.random.Generator) -> list[Batch]:
        """Return the transitions at the places `items`, int [M, B], of a row set, at moments of
        mini-races that `rng` draws.
        """
        assert self._rebuilder is not None
        rows = among.rows.take(items).astype(np.intp)
        weights = self.gamma or 0.0, self.shaping or 0.0
        race_steps = self._race_steps
        left = rng.integers(1, race_steps + 1, rows.shape) if race_steps else None
        batches = self._rebuilder.batches(rows, self.device, *weights, left)
        preprocessors = [
            f for f in (self.obs_preprocessor, self.sample_preprocessor) if f is not None
        ]
        if not preprocessors:
            return batches
        if all(map(is_batched, preprocessors)):
            return [with_six(batch, self._changed(self._seen(tuple(batch)))) for batch in batches]
        assert len(batches) == 1
        left = None if left is None else left.reshape(-1, 1)
        single = self._rebuilder.batches(rows.reshape(-1, 1), None, *weights, left)
        six = self._batch_of([self._preprocessed(tuple(one)) for one in single])
        return [with_six(batches[0], six)]

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self._held_out_rng = np.random.default_rng((seed, 1))
        self._drawn = []
        self._at_once = 1
