"""The seam for replay memories: three methods of yours, everything else here.

A memory takes samples in the order in which a worker produced them and gives transitions back. How it stores
them is its own business. The base class keeps what must hold for any memory: no training across a reset, no
mixing of workers, every transition of the right form, and, under CRC debugging, the very transition that the
environment produced.

A memory is used by one thread at a time; it has no lock.
"""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tmrl_like.errors import CheckpointError, ConfigError, DecodingError, MemoryContractError
from tmrl_like.files import write_atomically
from tmrl_like.memories import state as memory_state
from tmrl_like.memories.collate import collate_batch
from tmrl_like.memories.crc import check_transition
from tmrl_like.memories.minari import episodes_of, find_minari
from tmrl_like.memories.streams import StreamSorter
from tmrl_like.types import (
    Batch,
    Buffer,
    Info,
    ObsPreprocessor,
    Receipt,
    SampleCompressor,
    SamplePreprocessor,
    Transition,
)

if TYPE_CHECKING:
    from tmrl_like.memories.durable import Kept

logger = logging.getLogger(__name__)

DATASET_FILE = "dataset.tmrl"
_STATE_FORMAT = 1
_DONE_SPLIT = "the old `done` is split into `terminated` and `truncated`"
_TRANSITION = "(last_obs, act, rew, obs, terminated, truncated, info)"
_SIX = "(last_obs, act, rew, obs, terminated, truncated)"
_FIELDS = 7
_TRIES_PER_TRANSITION = 100
_TRIES_AT_LEAST = 1000
_SCAN = 1000
_MAX_HELD = 4096
_LOG_EVERY = 10_000


class MemoryDataloading(ABC):
    """A replay memory. Subclass it and write `append_buffer`, `__len__` and `get_transition`.

    Class attributes that a subclass may set:

    - `context_length`: how many earlier samples `get_transition` may look at before the older one of its two
      (action buffers, image histories). Raise it where yours looks back further.
    - `min_run`: how many samples of one worker are collected before the memory switches to that worker.
    - `handles_resets`: True promises that this memory itself keeps out transitions that end in a sample whose
      `info.is_reset` or `info.is_context` is True; it then need not return the sample's own info.
    - `handles_streams`: True hands every buffer over as it comes; the memory itself keeps apart the workers
      (`buffer.stream`).
    - `state_attributes`: names of the attributes that a checkpoint or data set holds.
    """

    context_length: int = 16
    min_run: int = 64
    handles_resets: bool = False
    handles_streams: bool = False
    state_attributes: tuple[str, ...] = ("data",)

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
    ) -> None:
        """Set up an empty memory, or one filled from `dataset_path`.

        Args:
            device: where batches go ("cpu", "cuda", "cuda:1", …).
            nb_steps: batches per round: how many `for batch in memory` yields.
            obs_preprocessor: applied to both observations of a transition, as on the worker.
            sample_preprocessor: (last_obs, act, rew, obs, terminated, truncated) -> the same six, after
                `obs_preprocessor`; e.g. data augmentation.
            memory_size: samples to keep; the memory drops the oldest beyond.
            batch_size: transitions per batch, drawn uniformly with replacement.
            dataset_path: a file or folder written by `save_dataset` of the same class, or a Minari data set
                (its folder or its HDF5 file); "" for none.
            crc_debug: compare every transition drawn with what the environment produced. Slow; the
                worker's `crc_debug` must be on as well.

        Raises:
            ConfigError: a size that is not positive, or no data set at `dataset_path`.
            CheckpointError: the data set is damaged or from another class.
        """
        self.device = str(device)
        self.nb_steps = int(nb_steps)
        self.obs_preprocessor = obs_preprocessor
        self.sample_preprocessor = sample_preprocessor
        self.memory_size = _positive("memory_size", memory_size)
        self.batch_size = _positive("batch_size", batch_size)
        self.crc_debug = bool(crc_debug)
        self.crc_checked = 0
        self.rng = np.random.default_rng()
        self.data: Any = []
        self._streams = StreamSorter(_MAX_HELD)
        self._seen_trainable = False
        self._dataset_path = str(dataset_path)
        if self._dataset_path:
            self.load_dataset(self._dataset_path)

    # ---- yours

    @abstractmethod
    def append_buffer(self, buffer: Buffer) -> None:
        """Store the samples of `buffer`: consecutive samples of one worker, oldest first.

        `buffer.memory` is a list of `Sample`; keep each sample's `info` and return it from `get_transition`.
        The newest samples in the memory are the ones before these, also where workers take turns. Drop the
        oldest samples beyond `self.memory_size`.

        Raises:
            MemoryContractError: samples do not fit those that are stored; nothing of `buffer` may have been stored
                then. The trainer refuses the worker process that they come from, and goes on; what was held of its
                samples (see `min_run`) is dropped. Anything else that you raise ends the trainer, and so does this
                error while the memory is empty.
        """

    @abstractmethod
    def __len__(self) -> int:
        """How many items `get_transition` takes: 0 until a whole history exists."""

    @abstractmethod
    def get_transition(self, item: int) -> Transition | tuple[Any, ...]:
        """Rebuild one transition, 0 <= item < len(self).

        Returns:
            (last_obs, act, rew, obs, terminated, truncated, info), with the `info` of the newer sample: the
            very object that the buffer held.
        """

    def collate(self, batch: list[tuple[Any, ...]], device: str) -> Batch | tuple[Any, ...]:
        """Turn a list of (last_obs, act, rew, obs, terminated, truncated) into tensors on `device`.

        Override it for structures that `memories.collate.collate_batch` does not know.

        Returns:
            A `Batch`, or a tuple of its six in the same order.
        """
        return collate_batch(batch, device)

    def sample_indices(self) -> Iterable[int]:
        """Draw `batch_size` items. Override it to draw otherwise than uniformly."""
        drawn: list[int] = self.rng.integers(0, len(self), self.batch_size).tolist()
        return drawn

    @classmethod
    def compressor(cls, **arguments: Any) -> SampleCompressor | None:
        """The compressor that belongs to this memory, from the arguments that its constructor is given.

        Override it where your memory has one: an experiment without `sample_compressor` then uses it on the
        workers, and so does `memories.compressor_of(memory_cls)`.

        Returns:
            None: samples travel whole.
        """
        return None

    def feed_back(self, drawn: Any, td_error: Any) -> None:  # noqa: B027 - most memories need not know
        """Take the agent's errors on a batch, for memories that draw by them.

        Args:
            drawn: the batch's.
            td_error: [B], array or tensor; only their size counts.
        """

    # ---- appending

    def append(self, buffer: Buffer) -> None:
        """Take the samples of one worker. The trainer calls this.

        Consecutive calls of one `buffer.stream` are consecutive samples. Where samples were lost, or the
        environment was built anew, the caller continues under another stream name.

        After the call all but `pending(buffer.stream)` samples of that stream are in the memory.
        """
        if not len(buffer):
            return
        if self.handles_streams:
            self.append_buffer(buffer)
        else:
            self._append_all(self._streams.add(buffer, max(1, self.context_length), self.min_run))

    def pending(self, stream: str) -> int:
        """How many of the newest samples of `stream` are held back and not yet in the memory.

        Held samples are part of `state_dict()`. At most `min_run - 1` wait per stream.
        """
        return self._streams.pending(stream)

    def flush(self, stream: str | None = None) -> None:
        """Put held samples into the memory now: of one stream, or of all."""
        self._append_all(self._streams.flush(max(1, self.context_length), stream))

    def _append_all(self, buffers: list[Buffer]) -> None:
        for buffer in buffers:
            self.append_buffer(buffer)

    # ---- drawing

    @property
    def holds_samples(self) -> bool:
        """Whether there are samples that further ones must fit."""
        return len(self) > 0

    @property
    def ready(self) -> bool:
        """True when a batch can be drawn: some transition exists that ends in neither reset nor context.

        Scans at most the newest 1,000 items, until it has found one for the first time.
        """
        if not self._seen_trainable:
            length = len(self)
            newest = range(length - 1, max(-1, length - 1 - _SCAN), -1)
            self._seen_trainable = any(self._is_trainable(self._transition(item)) for item in newest)
        return self._seen_trainable and len(self) > 0

    def seed(self, seed: int) -> None:
        """Make the draws from here on repeatable."""
        self.rng = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the `nb_steps` batches of one round."""
        for _ in range(self.nb_steps):
            yield self.sample()

    def sample(self) -> Batch:
        """Draw one batch.

        Raises:
            MemoryContractError: there is nothing to draw (see `ready`), or the memory broke its contract.
            PipelineMismatchError: CRC debugging found a difference.
        """
        drawn = self._draw()
        return self._collated([next(drawn) for _ in range(self.batch_size)])

    def _collated(self, transitions: list[tuple[Any, ...]]) -> Batch:
        batch = self.collate(transitions, self.device)
        if len(batch) != len(Batch._fields):
            raise MemoryContractError(
                f"{type(self).__name__}.collate returned {len(batch)} items; expected {', '.join(Batch._fields)}"
            )
        return batch if isinstance(batch, Batch) else Batch(*batch)

    def __getitem__(self, item: int) -> tuple[Any, ...]:
        """One transition as the agent sees it, preprocessed: (last_obs, act, rew, obs, terminated, truncated).

        An item whose transition ends in a reset or context sample stands for another one, drawn at random.
        """
        transition = self._trainable(item)
        return next(self._draw()) if transition is None else transition

    def _draw(self) -> Iterator[tuple[Any, ...]]:
        """Yield transitions to train on, for as long as a bounded number of draws finds them."""
        failures = 0
        limit = _TRIES_AT_LEAST + _TRIES_PER_TRANSITION * self.batch_size
        while failures < limit:
            if not len(self):
                raise MemoryContractError("there is no transition in the memory yet: wait until `memory.ready`")
            failures += 1
            for item in self.sample_indices():
                transition = self._trainable(item)
                if transition is None:
                    failures += 1
                else:
                    failures = 0
                    yield transition
        raise MemoryContractError(
            f"{limit} transitions in a row, drawn at random from {len(self)}, all end in a reset or in context: there "
            "is nothing to train on yet; wait until `memory.ready`"
        )

    def _trainable(self, item: int) -> tuple[Any, ...] | None:
        """Rebuild, check and preprocess one item; None where it must not be trained on."""
        transition = self._transition(item)
        if not self._is_trainable(transition):
            return None
        if self.crc_debug:
            self._check(transition)
        return self._preprocess(transition)

    def _transition(self, item: int) -> tuple[Any, ...]:
        transition = self.get_transition(item)
        if not isinstance(transition, tuple | list) or len(transition) != _FIELDS:
            raise MemoryContractError(_wrong_number(f"{type(self).__name__}.get_transition", transition, _TRANSITION))
        return tuple(transition)

    def _is_trainable(self, transition: tuple[Any, ...]) -> bool:
        info = transition[-1]
        if isinstance(info, Info):
            return not (info.is_reset or info.is_context)
        if self.handles_resets:
            return True
        raise MemoryContractError(
            f"{type(self).__name__}.get_transition returned an info of type {type(info).__name__}, so that transitions "
            "across a reset cannot be recognised: return the sample's own info (and keep info a dict in the "
            "sample_compressor), or set handles_resets = True on your class if it keeps them out itself"
        )

    def _check(self, transition: tuple[Any, ...]) -> None:
        check_transition(getattr(transition[-1], "original", None), transition)
        self.crc_checked += 1
        if self.crc_checked == 1 or self.crc_checked % _LOG_EVERY == 0:
            logger.info("CRC debugging: %d transitions are what the environment produced", self.crc_checked)

    def _preprocess(self, transition: tuple[Any, ...]) -> tuple[Any, ...]:
        last_obs, act, rew, obs, terminated, truncated, _ = transition
        if self.obs_preprocessor is not None:
            last_obs, obs = self.obs_preprocessor(last_obs), self.obs_preprocessor(obs)
        if self.sample_preprocessor is None:
            return last_obs, act, rew, obs, terminated, truncated
        return self._sample_preprocessed((last_obs, act, rew, obs, terminated, truncated))

    def _sample_preprocessed(self, six: tuple[Any, ...]) -> tuple[Any, ...]:
        assert self.sample_preprocessor is not None
        result = self.sample_preprocessor(*six)
        if not isinstance(result, tuple | list) or len(result) != len(six):
            raise MemoryContractError(_wrong_number("sample_preprocessor", result, _SIX))
        return tuple(result)

    # ---- samples that survive a kill as they arrive

    @property
    def kept(self) -> Kept | None:
        """What lies in files and survives this process; None: a checkpoint must hold the samples."""
        return None

    @property
    def receipts(self) -> list[Receipt]:
        """The newest packet of each worker process among the samples that are kept."""
        return []

    @property
    def keeps_files(self) -> bool:
        """Whether samples lie in files, or will from the first step of an episode on."""
        return False

    def keep_in(self, folder: Path, run: str = "", receipts: Sequence[Receipt] = ()) -> None:  # noqa: B027
        """Keep the samples in files of `folder` from now on, those of `receipts` among them.

        A memory that cannot do so, like this one, does nothing.

        Raises:
            CheckpointError: another process has the folder.
        """

    def recover(self, folder: Path) -> bool:
        """Take over the samples that an earlier process kept in `folder`; False: there are none.

        Raises:
            CheckpointError: they are damaged, or not for this memory.
        """
        return False

    def commit(self, receipts: Sequence[Receipt]) -> bool:
        """All samples of these packets have been appended: keep them.

        Returns:
            True when from now on they, and all before them, survive a kill of this process.
        """
        return False

    def side_state(self) -> Any:
        """A copy of what a checkpoint must hold beside the samples that are kept; None: nothing."""
        return None

    def load_side_state(self, state: Any) -> None:  # noqa: B027
        """Take over what `side_state` gave, after `recover`; samples may have come since."""

    def close(self) -> None:  # noqa: B027
        """Let go of files. Twice is fine."""

    # ---- checkpoints and data sets

    def contents(self) -> dict[str, Any]:
        """The stored samples, as nested dicts, lists and tuples of arrays and numbers.

        The snapshot does not change when the memory goes on: containers and arrays are copied two levels
        deep, what lies deeper (single samples) is shared and taken to be final.
        """
        return {name: _snapshot(getattr(self, name)) for name in self.state_attributes}

    @property
    def contents_are_copies(self) -> bool:
        """Whether `contents` gives a copy that may be written by another thread while the memory goes on.

        Override it where you override `contents`.
        """
        return type(self).contents is MemoryDataloading.contents

    def set_contents(self, contents: dict[str, Any]) -> None:
        """Take over what `contents` gave."""
        for name in self.state_attributes:
            setattr(self, name, contents[name])

    def state_dict(self) -> dict[str, Any]:
        """Everything a restart needs: contents, random generator, held samples, who appended last.

        Made for `memories.state.encode`, which turns it into bytes without pickle and may do so in another
        thread while the memory goes on.
        """
        return {
            "format": _STATE_FORMAT,
            "class": type(self).__name__,
            "contents": self.contents(),
            "rng": self.rng.bit_generator.state,
            "streams": self._streams.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken. Sizes and switches of this instance stay as they are.

        Raises:
            CheckpointError: the state is from another class, or not a memory's state.
        """
        self._load(state, "the checkpoint")
        try:
            self.rng.bit_generator.state = state["rng"]
            self._streams.load_state(state["streams"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"the checkpoint holds no state of a memory: {error!r}") from None

    def save_dataset(self, path: str | os.PathLike[str]) -> Path:
        """Write all samples, held ones too, to `path` (a file, or a folder, then `dataset.tmrl` in it).

        Returns:
            The file written. It appears whole or not at all.

        Raises:
            EncodingError: the memory stores something that cannot be written without pickle.
            OSError: the disk is full, or the like.
        """
        self.flush()
        file = Path(path) if Path(path).suffix else Path(path) / DATASET_FILE
        state = {"format": _STATE_FORMAT, "class": type(self).__name__, "contents": self.contents()}
        write_atomically(file, memory_state.encode(state))
        return file

    def load_dataset(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by what `save_dataset` wrote, or append the episodes of a Minari data set.

        Raises:
            ConfigError: there is no data set at `path`.
            CheckpointError: it is damaged or from another class.
            MissingExtraError: a Minari data set, and h5py is not installed.
        """
        minari = find_minari(Path(path))
        if minari is not None:
            self._append_episodes(minari)
            return
        file = _dataset_file(Path(path))
        try:
            state = memory_state.decode(file.read_bytes())
        except (DecodingError, OSError) as error:
            raise CheckpointError(f"the data set {file} cannot be read: {error}") from None
        self._load(state, f"the data set {file}")
        self._streams.start_behind_other_samples()
        logger.info("data set %s: %d transitions", file, len(self))

    def _append_episodes(self, file: Path) -> None:
        for episode in episodes_of(file):
            self.append(episode)
        self.flush()
        self._streams.start_behind_other_samples()
        logger.info("data set %s: %d transitions", file, len(self))

    def _load(self, state: Any, what: str) -> None:
        if not isinstance(state, dict) or state.get("format") != _STATE_FORMAT:
            raise CheckpointError(f"{what} holds no state of a memory that this version reads")
        if state.get("class") != type(self).__name__:
            raise CheckpointError(f"{what} was written by {state.get('class')}; this memory is a {type(self).__name__}")
        try:
            self.set_contents(state["contents"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(f"{what} does not fit {type(self).__name__}: {error!r}") from None
        self._seen_trainable = False


def _positive(name: str, value: float) -> int:
    if int(value) != value or value < 1:
        raise ConfigError(f"{name} is {value!r}; it is a whole number, 1 or more")
    return int(value)


def _wrong_number(who: str, value: Any, expected: str) -> str:
    found = f"{len(value)} items" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
    short = isinstance(value, tuple | list) and len(value) == expected.count(",")
    return f"{who} returned {found}; expected {expected}" + f": {_DONE_SPLIT}" * short


def _snapshot(value: Any, depth: int = 2) -> Any:
    """Copy arrays and containers down to `depth` levels, so that later appends do not show."""
    kind = type(value)
    if kind is np.ndarray:
        return value.copy()
    if not depth or kind not in (dict, list, tuple, deque):
        return value
    if depth == 1:
        return copy.copy(value)
    if kind is dict:
        return {key: _snapshot(item, depth - 1) for key, item in value.items()}
    items = [_snapshot(item, depth - 1) for item in value]
    return deque(items, value.maxlen) if kind is deque else kind(items)


def _dataset_file(path: Path) -> Path:
    file = path / DATASET_FILE if path.is_dir() else path
    pickled = path if path.suffix == ".pkl" else path / "data.pkl"
    if pickled.is_file() and (pickled == path or not file.is_file()):
        raise ConfigError(
            f"{pickled} is a pickle: reading one runs whatever its writer put in it, so it is not read; record the "
            "data set again and write it with save_dataset()"
        )
    if not file.is_file():
        raise ConfigError(f"there is no data set at {path}: dataset_path is a file or folder that save_dataset() wrote")
    return file
