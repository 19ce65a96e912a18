"""The seam for replay memories: three methods of yours, everything else here.

A memory takes samples in the order in which a worker produced them and gives transitions back. How it stores
them is its own business. The base class keeps what must hold for any memory: no training across a reset, no
mixing of workers, every transition of the right form, and, under CRC debugging, the very transition that the
environment produced.

A memory is used by one thread at a time; it has no lock.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.replay.collate import collate_batch
from tmrl_like.replay.crc import check_transition
from tmrl_like.replay.data_sets import read_data_set
from tmrl_like.replay.streams import StreamSorter
from tmrl_like.types import (
    Batch,
    Buffer,
    Info,
    ObsPreprocessor,
    SampleCompressor,
    SamplePreprocessor,
    Transition,
)

logger = logging.getLogger(__name__)

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
    - `takes_text`: True lets samples hold text and bytes where the spaces hold numbers (pictures that a compressor of
      yours encodes, say); a trainer refuses the workers that send such samples otherwise.
    """

    context_length: int = 16
    min_run: int = 64
    handles_resets: bool = False
    handles_streams: bool = False
    takes_text: bool = False

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
            dataset_path: a folder with a packet log (`tmrl-like record`, or what a trainer or worker kept), one file
                of it, or a Minari data set (its folder or its HDF5 file); "" for none.
            crc_debug: compare every transition drawn with what the environment produced. Slow; the
                worker's `crc_debug` must be on as well.

        Raises:
            ConfigError: a size that is not positive, or no data set at `dataset_path`.
            CheckpointError: the data set cannot be read, or its samples do not fit.
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
        if str(dataset_path):
            self.load_dataset(dataset_path)

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

    def compressed(self, obs: Any) -> Any:
        """What of an environment's observation arrives here; None: that is a compressor's affair that is not known."""
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
        environment was rebuilt, the caller continues under another stream name.

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

        At most `min_run - 1` wait per stream.
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
        logger.debug("CRC check passed: transition %d", self.crc_checked)
        if self.crc_checked == 1 or self.crc_checked % _LOG_EVERY == 0:
            logger.info("CRC check passed: %d so far are what the environment produced", self.crc_checked)

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

    # ---- data sets

    def load_dataset(self, path: str | os.PathLike[str]) -> None:
        """Append the samples of a data set: a packet log, or a Minari data set.

        Raises:
            ConfigError: there is no data set at `path`.
            CheckpointError: it cannot be read, or its samples do not fit.
            MissingExtraError: a Minari data set, and h5py is not installed.
        """
        try:
            for buffer in read_data_set(Path(path)):
                self.append(buffer)
            self.flush()
        except MemoryContractError as error:
            raise CheckpointError(f"the data set {path} does not fit this {type(self).__name__}: {error}") from None
        self._streams.start_behind_other_samples()
        logger.info("data set %s: %d transitions", path, len(self))


def _positive(name: str, value: float) -> int:
    if int(value) != value or value < 1:
        raise ConfigError(f"{name} is {value!r}; it is a whole number, 1 or more")
    return int(value)


def _wrong_number(who: str, value: Any, expected: str) -> str:
    found = f"{len(value)} items" if isinstance(value, tuple | list) else f"a {type(value).__name__}"
    short = isinstance(value, tuple | list) and len(value) == expected.count(",")
    return f"{who} returned {found}; expected {expected}" + f": {_DONE_SPLIT}" * short
