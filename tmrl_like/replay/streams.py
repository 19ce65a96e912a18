"""Puts the samples of several workers into one list, in an order that lets a memory look back over
earlier samples.

A user's memory appends samples to lists and rebuilds a transition from the samples before it. With
several workers that works only if each sample's recent past in the list is its own worker's.
`StreamSorter` ensures this, so that the user's memory need not know about several workers:

- Samples of the stream that was appended last are passed on at once. With one worker, nothing else
  happens.
- Samples of another stream are held back until there are enough of them to be worth a switch.
- At a switch, the stream's own newest samples (up to `num_context`: all that a transition which
  ends in the next sample looks back on) are appended again first, as *context*: copies whose
  `info.is_context` is True. They are history; the base class trains on no transition that ends in
  one.
- If a stream has fewer samples than that, because it is new, its first samples are marked as
  context instead, until `num_context` of them are in place: before that, looking back would reach
  another stream.

Flags of context samples (terminated, truncated, is_reset) stay as they were, so that the past is
unchanged. A worker that dies during an episode needs no special care: its stream never continues,
and any other stream begins with a switch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from tmrl_like.errors import MemoryContractError
from tmrl_like.types import Buffer, Info, Sample, StepTiming

log = logging.getLogger("tmrl_like.replay")

_REMEMBERED_STREAMS = 256
_MAX_HELD = 4096  # samples, of all streams
NO_TIMING = StepTiming(0.0, 0.0, 0.0, 0)  # of samples that no worker made
_DATA_SET = "\0data set"  # no stream has this name


class StreamSorter:
    """Decides what is appended to the memory, and in which order. Does not depend on the memory
    itself.
    """

    def __init__(self, append: Callable[[Buffer], None]) -> None:
        """Start with an empty memory; `append` appends to it."""
        self._append = append
        self._current: str | None = None  # None: nothing has been appended yet
        self._to_mark = 0
        # newest samples per stream, least recent stream first
        self._tails: dict[str, list[Sample]] = {}
        self._held: dict[str, list[Sample]] = {}  # longest waiting stream first

    def start_behind_other_samples(self) -> None:
        """Take into account that the memory holds samples (a data set) that belong to no future
        stream.
        """
        self._current = _DATA_SET

    def add(self, buffer: Buffer, num_context: int, min_run: int) -> None:
        if self._current is None:
            self._current = buffer.stream
        if buffer.stream == self._current:
            self._append(self._marked(buffer, num_context))
            return
        held = self._held.setdefault(buffer.stream, [])
        held += buffer.memory
        ends = len(held) >= num_context and any(
            sample.terminated or sample.truncated for sample in held
        )
        # switch at the end of an episode, unless the context outweighs it, or after a long run
        if ends or len(held) >= min_run:
            self._switch_to(buffer.stream, num_context)
        while sum(map(len, self._held.values())) > _MAX_HELD:
            # the stream that has waited longest goes in
            waited_longest = next(iter(self._held))
            try:
                self._switch_to(waited_longest, num_context)
            except MemoryContractError as error:
                if waited_longest == buffer.stream:
                    raise
                # the caller would blame the worker that sent `buffer`
                log.warning("samples of %s do not fit and are dropped: %s", waited_longest, error)

    def flush(self, num_context: int, stream: str | None = None) -> None:
        """Append the samples that are held back, of one stream or of all.

        Raises:
            MemoryContractError: those of a stream do not fit. They are dropped; the others are in.
        """
        misfit: MemoryContractError | None = None
        for name in list(self._held):
            if stream in (None, name):
                try:
                    self._switch_to(name, num_context)
                except MemoryContractError as error:
                    misfit = error
        if misfit is not None:
            raise misfit

    def _switch_to(self, stream: str, num_context: int) -> None:
        held = Buffer(self._held.pop(stream), stream)
        history = self._tails.get(stream, [])[-num_context:]
        self._current = stream
        self._to_mark = num_context - len(history)
        try:
            if history:
                self._append(Buffer([*map(as_context, history)], stream))
            self._append(self._marked(held, num_context))
        except MemoryContractError:
            # whatever comes next, of this stream too, begins with a switch
            self._tails.pop(stream, None)
            self.start_behind_other_samples()
            raise

    def _marked(self, buffer: Buffer, num_context: int) -> Buffer:
        tail = self._tails.pop(buffer.stream, [])
        self._tails[buffer.stream] = [*tail, *buffer.memory[-num_context:]][-num_context:]
        if len(self._tails) > _REMEMBERED_STREAMS:
            del self._tails[next(iter(self._tails))]
        if not self._to_mark:
            return buffer
        marked = min(self._to_mark, len(buffer))
        self._to_mark -= marked
        samples = buffer.memory
        return Buffer([*map(as_context, samples[:marked]), *samples[marked:]], buffer.stream)


def info_of(sample: Sample) -> Info:
    """Return what the framework knows about a sample; the defaults, if the user made the sample."""
    return sample.info if isinstance(sample.info, Info) else Info()


def as_context(sample: Sample) -> Sample:
    """Return a copy in which no transition ends."""
    info = info_of(sample)
    return sample._replace(
        info=Info(info, info.is_reset, True, info.timing, info.original, info.episode)
    )


def recorded_episodes(buffers: Iterable[Buffer]) -> Iterator[list[Sample]]:
    """Yield the samples of each episode, those of its reset first."""
    under_way: dict[str, list[Sample]] = {}
    for buffer in buffers:
        samples = under_way.setdefault(buffer.stream, [])
        for sample in buffer:
            if info_of(sample).is_reset and samples and not info_of(samples[-1]).is_reset:
                yield samples
                samples = under_way[buffer.stream] = []
            samples.append(sample)
    yield from filter(None, under_way.values())
