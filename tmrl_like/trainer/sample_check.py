"""What samples must be before the trainer takes them: of the form of its spaces, and finite."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.base import tree
from tmrl_like.errors import ConfigError, MemoryContractError
from tmrl_like.replay.columns import dtype_of, named_leaves, shape_of
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.replay.store import NAMES, columns_in, nodes_of
from tmrl_like.wire.packet import SampleBlock
from tmrl_like.wire.schema import Node, PlainLeaf, leaves_of, schema_of

_LARGEST = math.sqrt(np.finfo(np.float32).max)  # its square is finite; losses and optimisers square
_MAX_STRUCTURES = 256
_NUMBERS = ("none", "bool", "int", "float")
_SINGLE: list[tuple[int, ...]] = [()]


class SampleCheck:
    """Refuses samples that training could not use, whatever worker they come from. Any one thread.

    Where the spaces hold numbers the samples do (a memory with `takes_text` excepted). Where the memory's own
    compressor is known, arrays have the shapes of the spaces, in any order; dtypes are the memory's to compare.
    """

    def __init__(
        self, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], memory: MemoryDataloading
    ) -> None:
        """Work out what is expected; nothing of the memory is used later."""
        is_open = memory.takes_text
        self._columns = memory.columns
        self._numeric = {
            "act": not is_open and _is_numeric(action_space),
            "obs": not is_open and _is_numeric(observation_space),
        } | dict.fromkeys(NAMES[2:], not is_open)
        self._shapes = _expected_shapes(observation_space, action_space, memory) if all(self._numeric.values()) else {}
        is_raw = memory.obs_preprocessor is not None or memory.sample_preprocessor is not None
        self._finite = ("act", "rew") if is_raw else ("act", "obs", "rew")
        self._seen: dict[int, tuple[Node, list[tuple[int, str]]]] = {}  # by id: a structure, its leaves that are floats

    def structure(self, schema: Node) -> None:
        """Raise MemoryContractError, with place and both, where a sample's structure is not that of the spaces."""
        self._floats_of(schema)

    def values(self, block: SampleBlock) -> None:
        """Raise MemoryContractError for a number that is NaN, infinite, or so large that its square in float32 is."""
        with np.errstate(over="ignore", invalid="ignore"):
            for segment in block.segments:
                for index, name in self._floats_of(segment.schema):
                    _refuse_not_finite(segment.leaves[index], name)

    def _floats_of(self, schema: Node) -> list[tuple[int, str]]:
        known = self._seen.get(id(schema))
        if known is None:
            if len(self._seen) >= _MAX_STRUCTURES:
                self._seen.clear()
            known = self._seen[id(schema)] = schema, list(self._checked(schema))
        return known[1]

    def _checked(self, schema: Node) -> Iterator[tuple[int, str]]:
        """Index and name of each leaf that holds floats and must be finite."""
        index = 0
        for name, node in zip(NAMES, nodes_of(schema), strict=True):
            leaves = named_leaves(node, name)
            for path, leaf in leaves:
                kind = leaf.kind if isinstance(leaf, PlainLeaf) else np.dtype(leaf.dtype).kind
                if self._numeric[name] and kind not in (*_NUMBERS, *"biufc"):
                    raise MemoryContractError(
                        f"{path} is {leaf}; expected numbers, as in the trainer's spaces (a memory that takes text "
                        "where they hold numbers sets takes_text = True)"
                    )
                if name in self._finite and kind in ("float", "f", "c"):
                    yield index, path
                index += 1
            shapes = sorted(shape_of(leaf) for _, leaf in leaves)
            expected = self._shapes.get(name, shapes)
            if shapes != expected and not (expected == _SINGLE and [math.prod(s) for s in shapes] == [1]):
                raise MemoryContractError(
                    f"{name} has arrays of the shapes {shapes}; expected {expected}, as the trainer's spaces and the "
                    "memory's compressor say"
                )
        for name, found in zip(self._columns, columns_in(schema, self._columns), strict=False):
            if found is not None:  # else it is the memory that says so
                for i, (path, leaf) in enumerate(named_leaves(found[0], f"info[{name!r}]"), start=found[1].start):
                    if dtype_of(leaf, path).kind in "fc":
                        yield i, path


def check_data_set(memory: MemoryDataloading, observation_space: gymnasium.Space[Any]) -> None:
    """Raise ConfigError unless a memory rebuilds observations of the trainer's space from what it begins with.

    Not noticed where a compressor of the user's own may have run.
    """
    if not len(memory):
        return
    obs = copy.deepcopy(observation_space).sample()
    try:
        if memory.compressed(obs) is None:
            return
        found, expected = _shapes_of(memory.get_transition(0)[0]), _shapes_of(obs)
        difference = f"arrays of the shapes {found} instead of {expected}" if found != expected else ""
    except MemoryContractError as error:
        difference = str(error)
    if difference:
        raise ConfigError(
            f"observations rebuilt from the data set are not of the observation space: {difference}; give the memory "
            "the act_buf_len and frame_stack that the data set was recorded with, and the trainer that environment"
        )


def _is_numeric(space: Any) -> bool:
    numeric = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return all(isinstance(part, numeric) for part in tree.leaves(space))


def _expected_shapes(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any], memory: MemoryDataloading
) -> dict[str, list[tuple[int, ...]]]:
    """The shapes of each field's arrays, sorted; nothing where a compressor of the user's own may run."""
    try:
        obs = memory.compressed(copy.deepcopy(observation_space).sample())
    except MemoryContractError:  # the memory's arguments do not fit the space; it says so when samples come
        return {}
    if obs is None:
        return {}
    single = dict.fromkeys(NAMES[2:], _SINGLE)
    return {"act": _shapes_of(copy.deepcopy(action_space).sample()), "obs": _shapes_of(obs), **single}


def _shapes_of(value: Any) -> list[tuple[int, ...]]:
    return sorted(map(shape_of, leaves_of(schema_of(value))))


def _refuse_not_finite(column: np.ndarray[Any, Any], name: str) -> None:
    """`column` is [N, ...] of floats or complex numbers."""
    values = column if column.dtype == np.float32 else np.abs(column).astype(np.float32)
    flat = values.reshape(-1)
    if math.isfinite(np.dot(flat, flat)):
        return
    is_fine = np.abs(flat) <= _LARGEST
    if not is_fine.all():
        worst = column.reshape(-1)[int(np.argmin(is_fine))]
        raise MemoryContractError(
            f"{name} holds {worst}, which is not finite when it is squared as float32: scale or clip it in the "
            "environment"
        )
