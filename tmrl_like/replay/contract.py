"""The interface of replay memories: a user writes three methods, and the rest is provided. A memory
is used by one thread at a time.

It takes samples in the order in which a worker produced them, and returns transitions; how it
stores them is up to it. The base class guarantees what must hold for any memory: no training across
a reset, no mixing of workers, every transition of the right form and, under CRC debugging, exactly
the transition that the environment produced.
"""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tmrl_like.base.options import Positive, in_range, in_ranges
from tmrl_like.base.tunable import Tunable
from tmrl_like.errors import CheckpointError, ConfigError, MemoryContractError
from tmrl_like.replay.collate import Six, collate_batch
from tmrl_like.replay.crc import FIELDS, Rebuilt, check_transition
from tmrl_like.replay.streams import StreamSorter
from tmrl_like.types import (
    Batch,
    Buffer,
    Info,
    Observation,
    ObsPreprocessor,
    SampleCompressor,
    SamplePreprocessor,
    Transition,
    check_items,
)
from tmrl_like.wire.spaces import Space

log = logging.getLogger("tmrl_like.replay")

_MOST_DRAWS = 1000  # for one batch
_LOG_EVERY = 10_000


class MemoryDataloading(Tunable, ABC):
    """A replay memory. Subclass it, write `append_buffer`, `__len__` and `get_transition`, and set
    the attributes that differ.

    Attributes:
        context_length: how many samples before the older one of its two `get_transition` may look
            at (action buffers, image histories). Increase it if yours looks back further.
        min_run: how many samples of one worker are collected before the memory switches to that
            worker.
        handles_resets: True promises that this memory itself excludes transitions that end in a
            sample whose `info.is_reset` or `info.is_context` is True; it then need not return the
            sample's own info.
        handles_streams: True passes every buffer on as it arrives; the memory keeps streams apart.
        takes_text: True lets samples hold text and bytes where the spaces hold numbers (pictures
            that a compressor of yours encodes, for example); otherwise a trainer rejects workers
            that send such samples.
        columns: items of `info` that the memory keeps; a trainer rejects workers that send values
            of them that are not finite.
        held_out: share of the episodes that is never drawn for training.
        mini_races: set if the batches have `time_left`; agents that do not take it are refused.
        shaping: weight of potentials; None: the memory keeps none.
        observation_space, action_space: the environment's, for a memory whose compressor is known:
            a data set of other shapes is refused. None: unknown.
    """

    context_length: int = 16
    min_run: int = 64
    handles_resets: bool = False
    handles_streams: bool = False
    takes_text: bool = False
    columns: Sequence[str] = ()
    mini_races: float | None = None
    held_out: float = 0.0
    shaping: float | None = None
    observation_space: Space | None = None
    action_space: Space | None = None
    tunable: ClassVar[tuple[str, ...]] = ("batch_size",)

    @in_ranges
    def __init__(
        self,
        device: str = "cpu",
        nb_steps: int = 1,
        obs_preprocessor: ObsPreprocessor | None = None,
        sample_preprocessor: SamplePreprocessor | None = None,
        memory_size: Positive = 1_000_000,
        batch_size: Positive = 256,
        dataset_path: str | os.PathLike[str] | None = "",
        crc_debug: bool = False,
    ) -> None:
        """Set up an empty memory, or one filled from `dataset_path`.

        Args:
            device: device of the batches ("cpu", "cuda", "cuda:1", …).
            nb_steps: batches per round: how many `for batch in memory` yields.
            obs_preprocessor: applied to both observations of a transition, as on the worker.
            sample_preprocessor: (last_obs, act, rew, obs, terminated, truncated) -> the same six,
                after `obs_preprocessor`; e.g. data augmentation. With an attribute
                `batched = True` it is called once per batch, with tensors [B, ...]; one with
                `one_step = True` makes rewards of one step, and is refused beside `n_steps` > 1.
            memory_size: number of samples to keep; beyond it, the oldest are dropped.
            batch_size: transitions per batch, drawn uniformly with replacement.
            dataset_path: recorded samples (a folder, or one file of it) or a Minari data set to
                start with; "" or None for none.
            crc_debug: compare every transition drawn with what the environment produced. Slow; the
                worker's `crc_debug` must be on as well.

        Raises:
            ConfigError: a size is not positive, there is no data set at `dataset_path`, or there is
                one and observations of the space do not fit the memory.
            CheckpointError: the data set cannot be read, or its samples do not fit.
        """
        self.device = str(device)
        self.nb_steps = int(nb_steps)
        self.obs_preprocessor = obs_preprocessor
        self.sample_preprocessor = sample_preprocessor
        self.memory_size = memory_size
        self.batch_size = batch_size
        self.crc_debug = bool(crc_debug)
        self.crc_checked = 0  # transitions compared by CRC debugging
        self.rng = np.random.default_rng()
        self.data: Any = []
        self._streams = StreamSorter(self.append_buffer)
        self._seen_trainable = False
        if dataset_path:
            self._load_data_set(Path(dataset_path).expanduser())
            self._streams.start_behind_other_samples()

    @abstractmethod
    def append_buffer(self, buffer: Buffer) -> None:
        """Store the samples of `buffer.memory`: consecutive samples of one worker, oldest first.

        Keep each sample's `info` and return it from `get_transition`. These samples continue the
        newest ones in the memory, even if workers take turns. Drop the oldest samples beyond
        `self.memory_size`.

        Raises:
            MemoryContractError: the samples do not fit the stored ones. A memory that raises this
                must not have stored any of `buffer`. The trainer rejects the worker process that
                sent the samples, drops those of it that are held back (see `min_run`), and
                continues. Other errors end the trainer, and so does this one while the memory is
                empty.
        """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items that `get_transition` accepts: 0 until a whole history
        exists.
        """

    @abstractmethod
    def get_transition(self, item: int) -> Rebuilt:
        """Rebuild the transition 0 <= item < len(self).

        Returns:
            (last_obs, act, rew, obs, terminated, truncated, info), with the `info` of the newer
            sample: the same object that the buffer held.
        """

    def collate(self, batch: list[Six], device: str) -> Batch | Six:
        """Turn a list of (last_obs, act, rew, obs, terminated, truncated) into tensors on `device`,
        in this order.
        """
        return collate_batch(batch, device)

    def sample_indices(self) -> Iterable[int]:
        """Draw `batch_size` items, uniformly."""
        return self.rng.integers(0, len(self), self.batch_size)

    @classmethod
    def compressor(cls, **arguments: Any) -> SampleCompressor | None:
        """Return the compressor that belongs to this memory, given its constructor's arguments;
        None: samples are sent whole.

        An experiment without `sample_compressor` uses it on the workers.
        """
        return None

    def compressed(self, obs: Observation) -> Observation | None:
        """Return what arrives here of an environment's observation; None: that depends on a
        compressor that the memory does not know.
        """
        return None

    def sample_held_out(self) -> Batch | None:
        """Draw a batch of what training never draws, without affecting its draws; return None if
        there is nothing to draw.
        """
        return None

    def append(self, buffer: Buffer) -> None:
        """Take the samples of one worker; up to `min_run` - 1 of each stream may be held back. The
        trainer calls this.

        Consecutive calls with one `buffer.stream` bring consecutive samples. If samples were lost,
        or the environment was rebuilt, the caller continues under another stream name.
        """
        if not len(buffer):
            return
        if self.handles_streams:
            self.append_buffer(buffer)
        else:
            self._streams.add(buffer, self.context_length + 1, self.min_run)

    def flush(self, stream: str | None = None) -> None:
        """Put samples that are held back into the memory now: those of one stream, or all."""
        self._streams.flush(self.context_length + 1, stream)

    @property
    def holds_samples(self) -> bool:
        """Whether there are samples that further ones must fit."""
        return len(self) > 0

    @property
    def ready(self) -> bool:
        """Whether a batch can be drawn: a transition has been found, among the newest 1,000, that
        ends in neither reset nor context.
        """
        if not self._seen_trainable:
            newest = range(len(self))[:-1001:-1]
            self._seen_trainable = any(
                self.is_trainable(self.get_transition(item)) for item in newest
            )
        return self._seen_trainable and len(self) > 0

    def tune(self, **values: float) -> None:
        if "batch_size" in values:
            values["batch_size"] = in_range("batch_size", values["batch_size"], Positive)
        super().tune(**values)

    def seed(self, seed: int) -> None:
        """Make the draws from now on repeatable."""
        self.rng = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the `nb_steps` batches of one round."""
        return (self.sample() for _ in range(self.nb_steps))

    def sample(self) -> Batch:
        """Draw one batch.

        Raises:
            MemoryContractError: there is nothing to draw (see `ready`), or the memory broke its
                contract.
            PipelineMismatchError: CRC debugging found a difference.
        """
        drawn = self._draw()
        return self._batch_of([next(drawn) for _ in range(self.batch_size)])

    def __getitem__(self, item: int) -> Six:
        """Return one transition, preprocessed, but not by a `sample_preprocessor` of batches; if it
        ends in a reset or context sample, another one, drawn at random.
        """
        return self._transition_of(item) or next(self._draw())

    # ---- from `get_transition` to a batch

    def _draw(self) -> Iterator[Six]:
        """Yield transitions to train on. Raises MemoryContractError if there seem to be none."""
        if not len(self):
            raise MemoryContractError(
                "there is no transition in the memory yet: wait until `memory.ready`"
            )
        for _ in range(_MOST_DRAWS):
            for transition in map(self._transition_of, map(int, self.sample_indices())):
                if transition is not None:
                    yield transition
        raise MemoryContractError(
            f"of {len(self)} transitions, nearly all end in a reset or in context: there is "
            "nothing to train on yet; wait until `memory.ready`"
        )

    def _transition_of(self, item: int) -> Six | None:
        """Rebuild, check and preprocess one item; return None if it must not be trained on."""
        transition = self._checked(item)
        return None if transition is None else self._preprocessed(tuple(transition[:-1]))

    def _checked(self, item: int) -> Rebuilt | None:
        """Rebuild one item, and compare it under CRC debugging; return None if it must not be
        trained on.
        """
        transition = self.get_transition(item)
        if not self.is_trainable(transition):
            return None
        if self.crc_debug:
            info = transition[-1]
            check_transition(info.original if isinstance(info, Info) else None, transition)
            self.crc_checked += 1
            log.debug("CRC check passed: transition %d", self.crc_checked)
            if self.crc_checked == 1 or self.crc_checked % _LOG_EVERY == 0:
                log.info(
                    "CRC check passed: %d so far are what the environment produced",
                    self.crc_checked,
                )
        return transition

    def is_trainable(self, transition: Rebuilt) -> bool:
        """Whether a transition ends in neither reset nor context. Raises MemoryContractError if its
        info does not tell.
        """
        name = type(self).__name__
        check_items(f"{name}.get_transition returned", transition, Transition._fields)
        info = transition[-1]
        if isinstance(info, Info):
            return not (info.is_reset or info.is_context)
        if self.handles_resets:
            return True
        raise MemoryContractError(
            f"{name}.get_transition returned an info of type {type(info).__name__}, so that "
            "transitions across a reset cannot be recognised: return the sample's own info (and "
            "keep info a dict in the sample_compressor), or set handles_resets = True on your "
            "class if it keeps them out itself"
        )

    def _preprocessed(self, six: Six) -> Six:
        """Return the six items of a transition as the agent sees them, but before a
        `sample_preprocessor` of whole batches.
        """
        changes = self.sample_preprocessor is not None and not is_batched(self.sample_preprocessor)
        if changes or self.obs_preprocessor is not None:
            six = copy.deepcopy(six)  # they may change what the memory holds
        six = self._seen(six)
        return self._changed(six) if changes else six

    def _seen(self, six: Six) -> Six:
        """Return the six items of a transition or a batch, after `obs_preprocessor`."""
        if self.obs_preprocessor is None:
            return six
        last_obs, act, rew, obs, *flags = six
        return self.obs_preprocessor(last_obs), act, rew, self.obs_preprocessor(obs), *flags

    def _changed(self, six: Six) -> Six:
        """Return the six items of a transition or a batch, after `sample_preprocessor`."""
        if self.sample_preprocessor is None:
            return six
        found = self.sample_preprocessor(*six)
        check_items("sample_preprocessor returned", found, FIELDS)
        return tuple(found)

    def _batch_of(self, transitions: list[Six]) -> Batch:
        """Collate with this memory's own `collate`; a `sample_preprocessor` of whole batches
        follows.
        """
        batch = self.collate(transitions, self.device)
        check_items(f"{type(self).__name__}.collate returned", batch, Batch._fields)
        batch = batch if isinstance(batch, Batch) else Batch(*batch)
        if not is_batched(self.sample_preprocessor):
            return batch
        return with_six(batch, self._changed(tuple(batch)))

    def _load_data_set(self, path: Path) -> None:
        # imported here, because a worker only needs the memory's compressor
        from tmrl_like.replay.data_sets import read_data_set
        from tmrl_like.replay.sample_check import SAME_AS_RECORDED, SampleCheck

        check = SampleCheck(self.observation_space, self.action_space, self)
        if check.misfit is not None:
            raise ConfigError(
                f"this {type(self).__name__} with a data set does not fit the trainer's "
                f"environment: {check.misfit}; {SAME_AS_RECORDED}"
            )
        samples = 0
        try:
            for buffer in check.passing(read_data_set(path)):
                samples += len(buffer)
                self.append(buffer)
            self.flush()
        except MemoryContractError as error:
            raise CheckpointError(
                f"the data set {path} does not fit this {type(self).__name__}: {error}"
            ) from None
        if not samples:
            raise CheckpointError(f"the data set {path} holds no sample that can be read")
        log.info("data set %s: %d transitions", path, len(self))
        if samples > self.memory_size:
            log.warning(
                "data set %s has %d samples, and memory_size is %d: the oldest are dropped",
                path,
                samples,
                self.memory_size,
            )


MemoryFactory: TypeAlias = Callable[..., MemoryDataloading]


def with_six(batch: Batch, six: Six) -> Batch:
    """Return a copy of a batch with these six items; its other attributes stay."""
    return batch._replace(**dict(zip(Batch._fields, six, strict=True)))


def is_batched(preprocessor: object) -> bool:
    """Whether a preprocessor takes whole batches."""
    return bool(getattr(preprocessor, "batched", False))
