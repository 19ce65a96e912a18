"""Checks samples: they must have the form of the spaces and of the first one stored, and be finite.

`SampleCheck` examines what arrives at a trainer, and what a data set holds, before it reaches any
memory. `ReplayMemory` compares the structure of samples with that of its first step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.errors import MemoryContractError
from tmrl_like.replay.row_set import Array
from tmrl_like.types import Block, Buffer, Observation, ObsPreprocessor, SamplePreprocessor
from tmrl_like.wire.schema import (
    ArrayForm,
    DictNode,
    Leaf,
    Node,
    PlainLeaf,
    TupleNode,
    array_form,
    fill,
    leaves_of,
)
from tmrl_like.wire.spaces import Space

Shapes: TypeAlias = dict[str, list[tuple[int, ...]]]
"""The shapes of each field's arrays, sorted."""

NUMBERS = ("rew", "terminated", "truncated")
NAMES = ("act", "obs", *NUMBERS)  # a sample without its info
_LARGEST = math.sqrt(np.finfo(np.float32).max)  # its square is finite; losses and optimisers square
SAME_AS_RECORDED = (
    "give the memory the act_buf_len and frame_stack that the samples were recorded with, and the "
    "trainer that environment"
)
_SINGLE: list[tuple[int, ...]] = [()]


class Memory(Protocol):
    """What is read here of a `MemoryDataloading`, which uses this module."""

    takes_text: bool
    columns: Sequence[str]
    obs_preprocessor: ObsPreprocessor | None
    sample_preprocessor: SamplePreprocessor | None

    def compressed(self, obs: Observation) -> Observation | None: ...


class LeafForm(NamedTuple):
    """The place and the form of a leaf of a sample."""

    path: str  # e.g. `obs[2]`
    place: int  # among all leaves of the sample, left to right
    leaf: Leaf

    @property
    def numbers(self) -> ArrayForm:
        """Its dtype and shape. Raises MemoryContractError for text, bytes and None."""
        numbers = array_form(self.leaf)
        if numbers is None:
            assert isinstance(self.leaf, PlainLeaf)
            raise MemoryContractError(
                f"{self.path} is a Python {self.leaf.kind}; expected arrays and numbers: drop it "
                "in the sample_compressor (a memory of your own that takes text where the spaces "
                "hold numbers sets takes_text = True)"
            )
        return numbers


class PartForm(NamedTuple):
    """The form of a field of a sample, or of an item of its info."""

    node: Node
    leaves: dict[str, LeafForm]  # by their paths, left to right


Parts: TypeAlias = dict[str, PartForm]
"""The fields of samples of one structure, and the items of their info as `item(name)`."""


def parts_of(schema: Node) -> Parts:
    """Return the parts of samples of one structure."""
    assert isinstance(schema, TupleNode)  # whatever comes over the wire has been checked there
    info = schema.items[len(NAMES)]
    items = zip(map(item, info.keys), info.items, strict=True) if isinstance(info, DictNode) else ()
    places = count()
    parts = Parts()
    for name, node in (*zip(NAMES, schema.items, strict=False), *items):
        named = tree.walk(fill(node, iter(leaves_of(node))))
        leaves = [LeafForm(name + tree.name_of(path), next(places), leaf) for path, leaf in named]
        parts[name] = PartForm(node, {leaf.path: leaf for leaf in leaves})
    return parts


def item(name: str | int) -> str:
    """Return the name of an item of info, as in messages and `Table.fields`."""
    return f"info[{name!r}]"


def refuse_no_number(name: str, part: PartForm) -> None:
    """Raise MemoryContractError unless a part is a single number."""
    leaf = part.leaves.get(name)
    if leaf is None or math.prod(leaf.numbers.shape) != 1:
        raise MemoryContractError(f"{name} is not a single number but {part.node}")


def refuse_change(
    name: str, first: PartForm, now: PartForm, casting: Literal["safe", "same_kind"]
) -> None:
    """Raise unless the leaves of samples can be cast to those of the first one. The order of the
    keys of a dict does not matter.

    Raises:
        MemoryContractError: the structure, a shape or a dtype differs; the message names the leaf.
    """
    if first.leaves.keys() != now.leaves.keys():
        places, now_places = (", ".join(part.leaves) or "empty" for part in (first, now))
        raise MemoryContractError(
            f"{name} has changed its structure: it began as {places} and is now {now_places}"
        )
    for path, leaf in first.leaves.items():
        began, is_now = leaf.numbers, now.leaves[path].numbers
        if is_now.shape != began.shape or not np.can_cast(is_now.dtype, began.dtype, casting):
            raise MemoryContractError(
                f"{path} began as {began.dtype} {began.shape} and is now {is_now.dtype} "
                f"{is_now.shape}: it must keep its dtype and shape; convert it in the environment "
                "or in the sample_compressor"
            )


def refuse_missing(name: str, parts: Parts) -> None:
    """Raise MemoryContractError if a sample lacks an item of info."""
    if name not in parts:
        there = ", ".join(other[5:-1] for other in list(parts)[len(NAMES) :])
        raise MemoryContractError(
            f"info has no {name[5:-1]}, which the memory keeps in a column; it has "
            f"{there or 'nothing'}: let the environment give it, or the actor beside its action, "
            "or take it out of the memory's columns"
        )


class SampleCheck:
    """Refuses samples that training could not use, whichever worker sent them. For one thread at a
    time.

    Attributes:
        misfit: why the memory's own compressor does not accept observations of the space; None: it
            does. Shapes are then not compared, because a compressor of the user's own may run.

    Samples must hold numbers where the spaces do (except for a memory with `takes_text`). If the
    memory's own compressor is known, arrays must have the shapes of the spaces, in any order.
    Comparing dtypes is left to the memory.
    """

    def __init__(
        self,
        observation_space: Space | None,
        action_space: Space | None,
        memory: Memory,
    ) -> None:
        """Work out what is expected, of observations and actions only that they are finite if their
        spaces are not known; the memory is not used later.
        """
        texts = {
            name
            for name, space in (("obs", observation_space), ("act", action_space))
            if space is None or _may_be_text(space)
        }
        items = [*map(item, memory.columns)]
        numeric = [] if memory.takes_text else [name for name in NAMES if name not in texts]
        self._numeric = numeric + items
        self._shapes: Shapes = {}
        self.misfit: MemoryContractError | None = None
        if not (observation_space is None or action_space is None or texts or memory.takes_text):
            # copies: to sample from the environment's would change what it does
            act = copy.deepcopy(action_space).sample()
            try:
                obs = memory.compressed(copy.deepcopy(observation_space).sample())
            except MemoryContractError as error:
                obs, self.misfit = None, error
            if obs is not None:  # else a compressor of the user's own may run
                self._shapes = {"act": _shapes_of(act), "obs": _shapes_of(obs)}
                self._shapes |= dict.fromkeys(NUMBERS, _SINGLE)
        is_raw = memory.obs_preprocessor is not None or memory.sample_preprocessor is not None
        self._finite = ["act", "rew", *([] if is_raw else ["obs"]), *items]
        self._floats_of = lru_cache(maxsize=256)(self._checked)

    def __call__(self, block: Block) -> None:
        """Raise MemoryContractError if a sample's structure does not match the spaces, or for a
        number that is NaN or infinite, or whose square is infinite in float32. The message names
        the place, what was found and what was expected.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            for segment in block.segments:
                for leaf in self._floats_of(segment.schema):
                    _refuse_not_finite(segment.leaves[leaf.place], leaf.path)

    def passing(self, buffers: Iterable[Buffer]) -> Iterator[Buffer]:
        """Yield buffers after a check of their blocks. Raises as a call does."""
        for buffer in buffers:
            for block in buffer.blocks:
                self(block)
            yield buffer

    def _checked(self, schema: Node) -> list[LeafForm]:
        """Check a structure; return its leaves that hold floats and must be finite."""
        parts = parts_of(schema)
        for leaf in _leaves_in(parts, self._numeric):
            if leaf.leaf != PlainLeaf("none"):  # a compressor of the user's own may drop anything
                _ = leaf.numbers
        for name, shapes in self._shapes.items():
            found = sorted(leaf.numbers.shape for leaf in parts[name].leaves.values())
            is_single = [math.prod(shape) for shape in found] == [1]
            if found != shapes and not (shapes == _SINGLE and is_single):
                raise MemoryContractError(
                    f"{name} has arrays of the shapes {found}; expected {shapes}, as the trainer's "
                    f"spaces and the memory's compressor say: {SAME_AS_RECORDED}"
                )
        forms = [(leaf, array_form(leaf.leaf)) for leaf in _leaves_in(parts, self._finite)]
        return [leaf for leaf, form in forms if form is not None and form.dtype.kind == "f"]


def _leaves_in(parts: Parts, names: list[str]) -> list[LeafForm]:
    """Return the leaves of those of the named parts that exist."""
    return [leaf for name in names if name in parts for leaf in parts[name].leaves.values()]


def _may_be_text(space: Space) -> bool:
    numeric = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return not all(isinstance(part, numeric) for part in tree.leaves(space))


def _shapes_of(value: Observation) -> list[tuple[int, ...]]:
    return sorted(np.shape(leaf) for leaf in tree.leaves(value))


def _refuse_not_finite(column: Array, name: str) -> None:
    """Raise MemoryContractError if a column, floats [N, ...], holds a number whose square is not
    finite in float32.
    """
    flat = column.astype(np.float32, copy=False).reshape(-1)
    if math.isfinite(np.dot(flat, flat)):
        return
    is_fine = np.abs(flat) <= _LARGEST
    if not is_fine.all():
        worst = column.reshape(-1)[int(np.argmin(is_fine))]
        raise MemoryContractError(
            f"{name} holds {worst}, which is not finite when it is squared as float32: scale or "
            "clip it in the environment"
        )
