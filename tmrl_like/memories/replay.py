"""The replay memory that ships: samples as columns, batches by one gather per column.

Every frame, every other observation leaf and every action is stored once, in its own dtype, in a ring of
`memory_size` rows. Action buffers are rebuilt by walking back through the actions (see `lanes`), exactly as
rtgym's environments fill them: with `reset_act_buf` True or False, across resets, with any number of workers
taking turns. Stacks of frames are rebuilt by walking back through the frames of the episode.

Not stored: `info`. Its contents do not come back from `get_transition`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.memories.action_buffer import DropActionBuffer
from tmrl_like.memories.collate import to_tensor
from tmrl_like.memories.columns import Array, FieldColumns, field_slices
from tmrl_like.memories.lanes import Lanes, Rows, action_history, frame_history
from tmrl_like.memories.layout import DropHistory, FramePadding, FrameStack, largest_stack, stack_sizes
from tmrl_like.memories.nstep import joined
from tmrl_like.memories.priorities import Priorities, Prioritised
from tmrl_like.memories.rebuild import MemoryOfRows
from tmrl_like.memories.samples import ACT, NAMES, OBS, REW, RowBlock, blocks_of, nodes_of, with_resets
from tmrl_like.types import Batch, Block, Buffer, Info, ObsPreprocessor, Sample, SamplePreprocessor, Transition
from tmrl_like.wire.columns import Columns
from tmrl_like.wire.schema import Node, TupleNode

_INT32_MAX = 2**31 - 1
_CHECKED_STRUCTURES = 256
_node_decoder: msgspec.msgpack.Decoder[Node] = msgspec.msgpack.Decoder(Node)


class _Slices(NamedTuple):
    """What of a sample's structure belongs where."""

    schema: Node
    leaves: list[slice]  # per field
    rew: Node | None  # that the column of rewards must hold; None: a reset's, which may be cast


class ReplayMemory(MemoryOfRows):
    """A replay memory for any environment whose observations and actions are arrays and numbers.

    Use it with its own compressor on the worker: `compressor_of(memory_cls)`, which an experiment does by
    itself. It drops action buffers and the older frames of stacks; without either there is none.

    `len(memory)` counts whole transitions: those that end in a reset, or whose action buffer or stack of frames
    reaches back beyond what the memory has seen, are not among them.

    Preprocessors and CRC debugging go transition by transition, a hundred times slower than without. A
    preprocessor with an attribute `batched = True` is called once per batch instead: `obs_preprocessor` with
    the observation's structure of tensors [B, ...] (and, on the worker, with single observations),
    `sample_preprocessor` with six such arguments.

    The observation tensors of a batch are its own: changing one in place changes no other.
    """

    handles_resets = True
    handles_streams = True

    def __init__(
        self,
        device: str = "cpu",
        nb_steps: int = 1,
        obs_preprocessor: ObsPreprocessor | None = None,
        sample_preprocessor: SamplePreprocessor | None = None,
        memory_size: int = 1_000_000,
        batch_size: int = 256,
        dataset_path: str | os.PathLike[str] = "",
        crc_debug: bool = False,
        act_buf_len: int = 0,
        reset_act_buf: bool = True,
        last_act_on_reset: bool = False,
        frame_stack: FrameStack = 0,
        frame_padding: FramePadding = "reset",
        n_steps: int = 1,
        gamma: float | None = None,
        prioritised: Prioritised | None = None,
    ) -> None:
        """Set up an empty memory; columns are reserved when the first samples arrive.

        Args:
            device: see `MemoryDataloading`, as for all up to `crc_debug`.
            nb_steps: batches per round.
            obs_preprocessor: see above.
            sample_preprocessor: see above.
            memory_size: rows of the ring: samples, the first of each episode included.
            batch_size: transitions per batch.
            dataset_path: a data set to start from.
            crc_debug: compare every transition drawn with the original.
            act_buf_len: how many actions the environment appends to its observations; the compressor has
                dropped them. 0: none.
            reset_act_buf: rtgym's key: True when a reset fills the action buffer with the default action,
                False when the buffer is carried over from the episode before.
            last_act_on_reset: rtgym's key: True when, with `reset_act_buf=False`, the last action stays in the
                buffer; False when the default action takes its place.
            frame_stack: which part of an observation is a stack of the last k frames, an array [k, ...], newest
                last; the compressor has kept the newest. 4: the observation itself, {"camera": 4} or {3: 4}: an
                item of a dict or tuple; 0: none.
            frame_padding: what the environment puts before an episode's first frame: "reset", that frame again,
                or "zero".
            n_steps: how many rewards a transition sums up (see `memories.nstep`). From 2 on `rew` is their
                discounted sum, next_obs, terminated and truncated are the last step's, and `Batch.discount`
                says what the value of next_obs counts.
            gamma: discount per step; needed for n_steps above 1, and then the agent's.
            prioritised: draw transitions by the agent's TD errors; None: uniformly.

        Raises:
            ConfigError: a number that cannot be.
        """
        if act_buf_len < 0 or int(memory_size) > _INT32_MAX:
            raise ConfigError(
                f"act_buf_len is {act_buf_len} and memory_size {memory_size}; the first is 0 or more, the "
                f"second at most {_INT32_MAX}"
            )
        self.act_buf_len = int(act_buf_len)
        self.reset_act_buf = bool(reset_act_buf)
        self.last_act_on_reset = bool(last_act_on_reset)
        DropHistory(self.act_buf_len, frame_stack)  # checks both
        if frame_padding not in ("reset", "zero"):
            raise ConfigError(f"frame_padding is {frame_padding!r}; expected reset or zero")
        if n_steps < 1 or (n_steps > 1 and gamma is None) or not 0.0 <= (1.0 if gamma is None else gamma) <= 1.0:
            raise ConfigError(
                f"n_steps is {n_steps} and gamma {gamma}; the first is 1 or more, and above 1 it needs the agent's "
                "gamma, 0 to 1"
            )
        self.n_steps = int(n_steps)
        self.prioritised = prioritised
        self.gamma = None if gamma is None else float(gamma)
        self.frame_stack = frame_stack
        self.frame_padding = frame_padding
        self._clear(max(1, int(memory_size)))
        super().__init__(
            device, nb_steps, obs_preprocessor, sample_preprocessor, memory_size, batch_size, dataset_path, crc_debug
        )

    @classmethod
    def compressor(
        cls, act_buf_len: int = 0, frame_stack: FrameStack = 0, **arguments: Any
    ) -> DropHistory | DropActionBuffer | None:
        """The compressor for a memory with these arguments; those that do not matter to it are ignored."""
        if frame_stack:
            return DropHistory(act_buf_len, frame_stack)
        return DropActionBuffer(act_buf_len) if act_buf_len else None

    def _clear(self, capacity: int) -> None:
        histories = [action_history(self.act_buf_len, self.reset_act_buf, self._repeats_last_act)]
        if largest_stack(self.frame_stack) > 1:
            histories.append(frame_history(largest_stack(self.frame_stack)))
        self._priorities = None if self.prioritised is None else Priorities(capacity, self.prioritised)
        self._lanes = Lanes(capacity, *histories, looks_ahead=self.n_steps > 1, watcher=self._priorities)
        self._fields: list[FieldColumns] = []  # as `NAMES`; empty before the first step of an episode
        self._resets_only: list[Buffer] = []  # what came before the first step: columns need its dtypes
        self._checked: dict[tuple[int, bool], _Slices] = {}  # structures that fit, by id
        self._originals: dict[int, Any] = {}  # CRC debugging: row -> what the environment produced

    @property
    def _settings(self) -> dict[str, bool]:
        return {"repeats_last_act": self._repeats_last_act}

    @property
    def _repeats_last_act(self) -> bool:
        return self.last_act_on_reset and not self.reset_act_buf

    # ---- appending

    def append_buffer(self, buffer: Buffer) -> None:
        """Store samples, all or none of them; columns of a packet are copied as columns.

        Raises:
            MemoryContractError: observations or actions change their structure, or are no arrays or numbers.
        """
        blocks = blocks_of(buffer)
        fields = self._fields or self._fields_for(blocks)
        if not fields:
            self._resets_only.append(buffer)
            return
        waiting = [(early.stream, block) for early in self._resets_only for block in blocks_of(early)]
        waiting += [(buffer.stream, block) for block in blocks]
        slices = [self._checked_slices(fields, block) for _, block in waiting]
        self._resets_only = []
        if not self._fields:
            self._fields = fields
            self._create_files()
        for (stream, block), of_segments in zip(waiting, slices, strict=True):
            self._begin(len(block.is_reset))
            self._store(stream, block, of_segments)
            self._appended += len(block.is_reset)

    @property
    def holds_samples(self) -> bool:
        """See `MemoryDataloading`."""
        return self._lanes.written > 0

    def _fields_for(self, blocks: Sequence[Block | RowBlock]) -> list[FieldColumns]:
        """Columns for the structure of the first sample that is no reset; none if there is none."""
        for block in blocks:
            for segment, is_reset in with_resets(block):
                if not is_reset.all():
                    self._checked.clear()
                    return self._columns_for(nodes_of(segment.schema))
        return []

    def _columns_for(self, nodes: Sequence[Node]) -> list[FieldColumns]:
        if self.act_buf_len and not isinstance(nodes[OBS], TupleNode):
            raise MemoryContractError(
                f"act_buf_len is {self.act_buf_len}, but obs is no tuple: the environment's observation is a tuple "
                "that ends in the action buffer, and the compressor leaves the rest of it"
            )
        stack_sizes(self.frame_stack, nodes[OBS])  # refuses what has none
        capacity = self._lanes.capacity
        try:
            fields = [FieldColumns(name, node, capacity) for name, node in zip(NAMES, nodes, strict=False)]
        except MemoryError as error:
            raise ConfigError(f"memory_size {capacity:,} is more than fits here: {error}; make it smaller") from None
        for field in fields[REW:]:
            if len(field.columns) != 1 or field.columns[0].array.size != capacity:
                raise MemoryContractError(f"{field.name} is not a single number but {field.node}")
        return fields

    def _store(self, stream: str, block: Block | RowBlock, slices: Sequence[_Slices]) -> None:
        """Store a block whose segments have been checked."""
        for of_fields in slices:
            self._widen(of_fields.rew)
        for first in range(0, len(block.is_reset), self._lanes.capacity):
            is_reset = block.is_reset[first : first + self._lanes.capacity]
            rows, previous = self._lanes.extend(stream, is_reset)
            self._mark(rows, stream, is_reset)
            start = -first
            for segment, of_fields in zip(block.segments, slices, strict=True):
                self._write(rows, start, segment, of_fields.leaves)
                start += segment.rows
            if self._repeats_last_act:
                self._repeat_last_act(rows, previous, is_reset)
            if self.crc_debug:
                self._keep_originals(rows, block.samples()[first : first + len(rows)])

    def _checked_slices(self, fields: Sequence[FieldColumns], block: Block | RowBlock) -> list[_Slices]:
        """The slices of each segment; checks a structure when it is met for the first time."""
        slices = []
        for segment, is_reset in with_resets(block):
            key = id(segment.schema), bool(is_reset.all())
            if key not in self._checked:
                if len(self._checked) >= _CHECKED_STRUCTURES:
                    self._checked.clear()
                self._checked[key] = _check(fields, segment.schema, only_resets=key[1])
            slices.append(self._checked[key])
        return slices

    def _widen(self, rew: Node | None) -> None:
        field = self._fields[REW]
        if rew is not None and rew != field.node:
            field.widen(rew)
            self._refile(field.columns[0])

    def _write(self, rows: Rows, start: int, segment: Columns, fields: list[slice]) -> None:
        """Write the part of a segment that falls on `rows`; its first sample is at position `start` of them."""
        low, high = max(0, -start), min(segment.rows, len(rows) - start)
        if low >= high:
            return
        target = rows[start + low : start + high]
        for field, leaves in zip(self._fields, fields, strict=False):
            for column, leaf in zip(field.columns, segment.leaves[leaves], strict=True):
                values = leaf[low:high]
                column.array[target] = values if values.ndim == column.array.ndim else values.reshape(-1, *column.shape)

    def _repeat_last_act(self, rows: Rows, previous: int | None, is_reset: Array) -> None:
        """With last_act_on_reset, the newest action of the buffer after a reset is the one before it."""
        before = np.concatenate(([rows[0] if previous is None else previous], rows[:-1]))
        for k in np.flatnonzero(is_reset).tolist():
            for column in self._fields[ACT].columns:
                column.array[rows[k]] = column.array[before[k]]

    def _keep_originals(self, rows: Rows, samples: list[Sample]) -> None:
        for row, sample in zip(rows.tolist(), samples, strict=True):
            self._originals[row] = getattr(sample.info, "original", None)

    # ---- drawing

    def __len__(self) -> int:
        """Number of whole transitions."""
        return len(self._lanes)

    @property
    def ready(self) -> bool:
        """True when there is a whole transition."""
        return len(self) > 0

    def get_transition(self, item: int) -> Transition:
        """Rebuild one transition; bit for bit what a batch holds at this item.

        Raises:
            IndexError: not 0 <= item < len(self).
        """
        if not 0 <= item < len(self):
            raise IndexError(f"item {item} of a memory with {len(self)} transitions")
        row = int(self._lanes.whole[item])
        if self.n_steps == 1:
            return self._one_step(row)
        steps = [self._one_step(row) for row in self._episode_from(row)]
        return Transition._make((*joined(steps, self._gamma), Info(original=self._joined_originals(steps))))

    def sample(self) -> Batch:
        """Draw one batch, by one gather per column unless it must go transition by transition.

        Raises:
            MemoryContractError: there is no whole transition yet (see `ready`).
            PipelineMismatchError: CRC debugging found a difference.
        """
        if not len(self):
            return super().sample()
        if self._priorities is None:
            return self._batch(np.asarray(self.sample_indices(), np.intp))
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
        errors = td_error.detach().cpu().numpy() if isinstance(td_error, torch.Tensor) else np.asarray(td_error)
        if errors.shape != drawn.shape:
            raise MemoryContractError(
                f"td_error has the shape {errors.shape}; expected {drawn.shape}, one per transition"
            )
        is_there = drawn >= self._lanes.oldest
        self._priorities.update(drawn[is_there] % self._lanes.capacity, errors[is_there])

    def _batch(self, items: Rows) -> Batch:
        if self.crc_debug or not self._preprocessors_are_batched():
            return self._one_by_one(items)
        return self._preprocess_batch(self._gather(items))

    def _one_by_one(self, items: Rows) -> Batch:
        batch = self._collated([self[item] for item in items.tolist()])
        if self.n_steps > 1:
            batch.discount = self._discount(self._ahead(self._lanes.whole.take(items).astype(np.intp)))
        return batch

    def sample_indices(self) -> Array:
        """Draw `batch_size` items, uniformly or by priority: int64 [batch_size]."""
        if self._priorities is not None:
            return self._lanes.items_of(self._priorities.draw(self.rng, self.batch_size, len(self))[0])
        return self.rng.integers(0, len(self), self.batch_size)

    def _preprocessors_are_batched(self) -> bool:
        return all(f is None or getattr(f, "batched", False) for f in (self.obs_preprocessor, self.sample_preprocessor))

    def _preprocess_batch(self, batch: Batch) -> Batch:
        if self.obs_preprocessor is not None:
            obs, next_obs = self.obs_preprocessor(batch.obs), self.obs_preprocessor(batch.next_obs)
            batch = batch._replace(obs=obs, next_obs=next_obs)
        if self.sample_preprocessor is None:
            return batch
        return batch._replace(**dict(zip(Batch._fields, self._sample_preprocessed(tuple(batch)), strict=True)))

    # ---- checkpoints and data sets

    def contents(self) -> dict[str, Any]:
        """All rows, as copies of the columns."""
        lanes = self._lanes
        filled = min(lanes.written, lanes.capacity)
        names = sorted({run.lane.stream for run in lanes.runs})
        runs = [(run.start, run.end, names.index(run.lane.stream)) for run in lanes.runs]
        numbers = range(lanes.oldest, lanes.written) if self._originals else ()
        return {
            "repeats_last_act": self._repeats_last_act,
            "capacity": lanes.capacity,
            "streams": names,
            "runs": np.array(runs, np.int64).reshape(-1, 3),
            "is_reset": lanes.is_reset[:filled].copy(),
            "whole": lanes.whole.copy(),
            "nodes": [msgspec.msgpack.encode(field.node) for field in self._fields],
            "columns": [[column.array[:filled].copy() for column in field.columns] for field in self._fields],
            "resets_only": [(buffer.stream, list(buffer.memory)) for buffer in self._resets_only],
            "priorities": None if self._priorities is None else self._priorities.state(filled),
            "originals": [self._originals.get(number % lanes.capacity) for number in numbers],
        }

    @property
    def contents_are_copies(self) -> bool:
        """See `MemoryDataloading`."""
        return type(self).contents is ReplayMemory.contents

    def set_contents(self, contents: dict[str, Any]) -> None:
        """Take over what `contents` gave. `memory_size` and `act_buf_len` may have changed since.

        Raises:
            CheckpointError: not the contents of such a memory, or `last_act_on_reset` has changed.
        """
        if contents["repeats_last_act"] != self._repeats_last_act:
            raise CheckpointError("last_act_on_reset or reset_act_buf is not what the samples were stored with")
        self._clear(self.memory_size)
        try:
            nodes = [_node_decoder.decode(node) for node in contents["nodes"]]
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"the structure of the samples does not decode: {error}") from None
        self._fields = [FieldColumns(n, node, self.memory_size) for n, node in zip(NAMES, nodes, strict=False)]
        self._resets_only = [Buffer(samples, stream) for stream, samples in contents["resets_only"]]
        if contents["capacity"] == self.memory_size and len(contents["runs"]):
            self._lanes.start_at(int(contents["runs"][0, 0]))
        for start, end, stream in contents["runs"].tolist():
            for first in range(start, end, self.memory_size):
                numbers = np.arange(first, min(end, first + self.memory_size))
                self._restore(contents, contents["streams"][stream], numbers)
        self._lanes.replace_whole(contents["whole"])
        if self._priorities is not None and contents.get("priorities"):
            self._priorities.load_counters(contents["priorities"])
        self._create_files()

    def side_state(self) -> Any:
        """See `MemoryDataloading`: priorities."""
        lanes = self._lanes
        if self._priorities is None:
            return None
        return {
            "capacity": lanes.capacity,
            "written": lanes.written,
            "priorities": self._priorities.state(min(lanes.written, lanes.capacity)),
        }

    def load_side_state(self, state: Any) -> None:
        """See `MemoryDataloading`. Samples that have come since are new: they have the largest priority."""
        lanes = self._lanes
        if self._priorities is None or state is None or state["capacity"] != lanes.capacity:
            return
        self._priorities.load_counters(state["priorities"])
        self._priorities.admit(lanes.whole.astype(np.intp))
        rows = np.arange(lanes.oldest, min(lanes.written, state["written"])) % lanes.capacity
        self._priorities.load_powers(rows, state["priorities"]["powers"][rows])

    def _restore(self, contents: dict[str, Any], stream: str, numbers: Rows) -> None:
        source = numbers % contents["capacity"]
        rows, _ = self._lanes.extend(stream, contents["is_reset"][source])
        for field, saved in zip(self._fields, contents["columns"], strict=True):
            for column, array in zip(field.columns, saved, strict=True):
                column.array[rows] = array[source]
        if self._priorities is not None and contents.get("priorities"):
            self._priorities.load_powers(rows, contents["priorities"]["powers"][source])
        if contents["originals"]:
            oldest = int(contents["runs"][0, 0])
            self._originals.update(zip(rows.tolist(), contents["originals"][numbers[0] - oldest :], strict=False))


def _check(fields: Sequence[FieldColumns], schema: Node, only_resets: bool) -> _Slices:
    """Refuse samples that do not fit. What a reset sample brings may be cast: no transition ends there."""
    nodes = nodes_of(schema)
    for field, node in zip(fields[:REW], nodes, strict=False):
        field.check_fits(node, is_lossless=not only_resets)
    for field, node in zip(fields[REW:], nodes[REW:], strict=True):
        field.check_is_number(node)
    return _Slices(schema, field_slices(nodes), None if only_resets else nodes[REW])
