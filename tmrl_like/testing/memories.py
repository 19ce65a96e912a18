"""Contract tests that every memory must pass, and the fake environment that they need.

Test a memory of your own::

    class TestMyMemory(MemoryContract):
        act_buf_len = 4

        def make_memory(self, **kwargs):
            return MyMemory(act_buf_len=4, **kwargs)

        def compress(self, *sample):
            return my_compressor(*sample)

Each method is one test. The samples come from `ActionBufferEnv`, whose action buffer behaves as
rtgym's does. The original transitions travel with them, as under CRC debugging, and every
transition is compared bit for bit.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from tmrl_like.base import tree
from tmrl_like.errors import MemoryContractError
from tmrl_like.replay.collate import Six, collate_batch
from tmrl_like.replay.compressor import DropHistory
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.replay.crc import check_transition
from tmrl_like.replay.row_set import Array
from tmrl_like.types import Buffer, Observation, Sample, StepTiming
from tmrl_like.wire.packet import PacketWriter


class Step(NamedTuple):
    """What a worker holds after one step of its environment."""

    sample: Sample  # uncompressed
    last_obs: Observation  # the one that the action was chosen for; None for a reset
    is_reset: bool
    episode: int = 0  # its number

    @property
    def original(self) -> Six:
        """The transition (last_obs, act, rew, obs, terminated, truncated)."""
        act, obs, rew, terminated, truncated, _ = self.sample
        return self.last_obs, act, rew, obs, terminated, truncated


@dataclass
class ActionBufferEnv:
    """An endless stream of steps whose observations end in an action buffer, as rtgym fills it.

    Observation: (identity float32 [2]: worker and step, picture uint8 [2, 3], reading float64
    scalar, and `act_buf_len` actions float32 [2], newest last). Every value is random, so a wrong
    row shows. With `frame_stack`, the picture is a stack of the last pictures, uint8 [frame_stack,
    2, 3], newest last; at the start of an episode it is padded with the first picture.

    The rules of the buffer: each step appends its action, even the last step of an episode, whose
    action is never applied. A reset fills the buffer with the default action (`reset_act_buf`),
    replaces only the newest action by the default one, or leaves the buffer alone
    (`last_act_on_reset`). Like a worker, `steps` yields a reset once for each action of the buffer.
    """

    worker: int = 0  # seeds the stream
    act_buf_len: int = 4
    reset_act_buf: bool = True
    last_act_on_reset: bool = False
    longest_episode: int = 12  # episodes have 1 to this many steps
    frame_stack: int = 0

    def __post_init__(self) -> None:
        self._rng = random.Random(self.worker)
        self._default_action = np.array([0.5, -0.5], np.float32)
        self._buffer = deque([self._default_action] * self.act_buf_len, self.act_buf_len)
        self._frames: deque[Array] = deque(maxlen=self.frame_stack)
        self._count = 0

    def steps(self) -> Iterator[Step]:
        """Yield steps for ever, including resets."""
        for number in itertools.count():
            last_obs = self._reset()
            for act in self._buffer or [self._default_action]:
                yield Step(Sample(act, last_obs, 0.0, False, False, {}), None, True, number)
            length = self._rng.randint(1, self.longest_episode)
            for k in range(1, length + 1):
                sample = self._step(is_last=k == length)
                yield Step(sample, last_obs, False, number)
                last_obs = sample.obs

    def take(self, count: int) -> list[Step]:
        """Return the first `count` steps of a new run, including resets."""
        return list(itertools.islice(self.steps(), count))

    def _reset(self) -> Observation:
        if self.reset_act_buf:
            self._buffer.extend([self._default_action] * len(self._buffer))
        elif self._buffer and not self.last_act_on_reset:
            self._buffer[-1] = self._default_action
        self._frames.clear()
        return self._observation()

    def _step(self, is_last: bool) -> Sample:
        act = np.array([self._rng.uniform(-1, 1), self._rng.uniform(-1, 1)], np.float32)
        self._buffer.append(act)
        terminated = is_last and self._rng.random() < 0.5
        truncated = is_last and not terminated
        info = {
            "speed": self._rng.random(),
            "greedy": np.bool_(self._rng.random() < 0.7),
            "potential": np.float32(self._rng.uniform(-1, 1)),
        }
        return Sample(
            act,
            self._observation(),
            np.float32(self._rng.uniform(-1, 1)),
            terminated,
            truncated,
            info,
        )

    def _observation(self) -> Observation:
        identity = np.array([self.worker, self._count], np.float32)
        self._count += 1
        picture = np.frombuffer(self._rng.randbytes(6), np.uint8).reshape(2, 3)
        return (identity, self._stacked(picture), np.float64(self._rng.random()), *self._buffer)

    def _stacked(self, picture: Array) -> Array:
        if not self.frame_stack:
            return picture
        if not self._frames:
            self._frames.extend([picture] * self.frame_stack)
        self._frames.append(picture)
        return np.stack(self._frames)


TIMING = StepTiming(1.0, 0.001, 0.0, 1)


def packed(
    steps: Sequence[Step],
    stream: str = "",
    compress: Callable[..., Sequence[Any]] | None = None,
    with_originals: bool = True,
    timing: StepTiming = TIMING,
) -> Buffer:
    """Return the steps as the trainer receives them: as the columns of a packet."""
    writer = PacketWriter()
    for step in steps:
        sample = tuple(step.sample if compress is None else compress(*step.sample))
        writer.append(
            (*sample, step.original) if with_originals else sample,
            timing,
            step.is_reset,
            step.episode,
        )
    return Buffer(stream=stream, blocks=[writer.block()] if steps else [])


def cut(steps: Sequence[Step], sizes: Iterable[int]) -> Iterator[Sequence[Step]]:
    """Yield pieces of these sizes, over and over, until the steps are used up."""
    left = iter(steps)
    for size in itertools.cycle(sizes):
        piece = list(itertools.islice(left, size))
        if not piece:
            return
        yield piece


def interleaved(
    workers: Sequence[Sequence[Sequence[Step]]], seed: int = 0
) -> Iterator[tuple[int, Sequence[Step]]]:
    """Yield (worker, packet) in a random order that keeps each worker's own order."""
    order = [number for number, packets in enumerate(workers) for _ in packets]
    random.Random(seed).shuffle(order)
    left = [iter(packets) for packets in workers]
    for number in order:
        yield number, next(left[number])


class MemoryContract:
    """Tests for a memory; subclass it in a test module and override what differs for yours."""

    act_buf_len = 4
    reset_act_buf = True
    last_act_on_reset = False
    frame_stack = 0
    steps = 400  # per worker

    def make_memory(self, **kwargs: int) -> MemoryDataloading:
        """Return the memory under test; pass `kwargs` (sizes, `crc_debug`) to its constructor."""
        raise NotImplementedError

    def compress(self, *sample: Any) -> Sequence[Any]:
        """Return what the worker sends of a sample, given its six items."""
        frames = self.frame_stack
        return DropHistory(self.act_buf_len, {1: frames} if frames else 0)(*sample)

    def test_every_transition_is_what_the_environment_produced_and_few_are_missing(self) -> None:
        steps = self._produce(1)
        memory = self._filled([steps], [37])
        self._check_all(memory, [steps])
        trainable = sum(not step.is_reset for step in steps)
        history = max(self.act_buf_len, self.frame_stack)
        assert len(self._identities(memory)) >= trainable - 4 * (history + 1) - 16

    def test_packets_of_any_size_give_the_same_memory(self) -> None:
        steps = self._produce(1)[:150]
        one, late, at_once = (self._filled([steps], sizes) for sizes in ([1], [1, 149], [150]))
        assert len(one) == len(late) == len(at_once) > 0
        assert self._identities(one) == self._identities(late) == self._identities(at_once)

    def test_workers_that_take_turns_join_in_an_episode_or_die_in_one_are_kept_apart(self) -> None:
        workers = [self._produce(1)[5:103], self._produce(2), self._produce(3)[2:]]
        memory = self._filled(workers, [5, 1, 80, 13])
        self._check_all(memory, workers)
        assert {worker for worker, _ in self._identities(memory)} == {1, 2, 3}

    def test_a_full_memory_forgets_the_oldest_and_stays_right(self) -> None:
        workers = [self._produce(number) for number in (1, 2)]
        memory = self._filled(workers, [11, 30], memory_size=200)
        assert 0 < len(memory) <= 200
        self._check_all(memory, workers)
        assert min(count for _, count in self._identities(memory)) > 100

    def test_the_length_is_zero_until_a_whole_history_exists(self) -> None:
        memory = self.make_memory(crc_debug=True)
        for steps in ([], self._produce(1)[:1]):
            memory.append(packed(steps, "w", self.compress))
            assert len(memory) == 0
            assert not memory.ready

    def test_batches_hold_transitions_that_exist(self) -> None:
        steps = self._produce(1)
        memory = self._filled([steps], [50], crc_debug=False, batch_size=300)
        produced = self._by_identity([steps])
        batch = memory.sample()
        originals = [
            produced[int(worker), int(count)].original
            for worker, count in batch.next_obs[0].tolist()
        ]
        expected = collate_batch(originals, memory.device)
        for path, found, other in tree.walk(tuple(batch), tuple(expected)):
            assert torch.equal(found, other), path

    def test_equal_seeds_draw_equal_batches(self) -> None:
        memory = self._filled([self._produce(1)], [50], crc_debug=False, batch_size=32)
        drawn = []
        for _ in range(2):
            memory.seed(5)
            drawn.append([memory.sample().next_obs[0].tolist() for _ in range(3)])
        assert drawn[0] == drawn[1]

    def test_of_a_buffer_that_is_refused_nothing_is_stored(self) -> None:
        """A memory may accept samples of any structure; one that refuses some stores nothing of
        their buffer.
        """
        workers = [self._produce(1), self._produce(2)]
        memory = self._filled([workers[0][:100]], [50])
        before = self._identities(memory)
        fits = packed(workers[0][100:150], "w0", self.compress)
        misfit = packed(
            workers[0][150:200], "w0", lambda act, obs, *others: (act, "nothing", *others)
        )
        try:
            memory.append(Buffer(stream="w0", blocks=[*fits.blocks, *misfit.blocks]))
        except MemoryContractError:
            assert self._identities(memory) == before
            memory.append(packed(workers[1], "w1", self.compress))
            memory.flush()
            self._check_all(memory, workers)

    def _produce(self, worker: int) -> list[Step]:
        env = ActionBufferEnv(worker, self.act_buf_len, self.reset_act_buf, self.last_act_on_reset)
        return replace(env, frame_stack=self.frame_stack).take(self.steps)

    def _filled(
        self, workers: Sequence[Sequence[Step]], sizes: Sequence[int], **kwargs: int
    ) -> MemoryDataloading:
        memory = self.make_memory(**{"crc_debug": True, **kwargs})
        for number, steps in interleaved([list(cut(steps, sizes)) for steps in workers]):
            memory.append(packed(steps, f"w{number}", self.compress))
        memory.flush()
        return memory

    def _trainable(self, memory: MemoryDataloading) -> list[Six]:
        transitions = map(memory.get_transition, range(len(memory)))
        return [tuple(one) for one in transitions if memory.is_trainable(one)]

    def _check_all(self, memory: MemoryDataloading, workers: Sequence[Sequence[Step]]) -> None:
        """Check that every rebuilt transition is the one that was produced, and that drawing
        transitions finds no fault either.
        """
        produced = self._by_identity(workers)
        transitions = self._trainable(memory)
        assert transitions
        for transition in transitions:
            step = produced[self._identity_of(transition[3])]
            assert not step.is_reset
            check_transition(step.original, transition)
        assert memory.ready
        memory.sample()

    def _identities(self, memory: MemoryDataloading) -> set[tuple[int, int]]:
        return {self._identity_of(transition[3]) for transition in self._trainable(memory)}

    def _by_identity(self, workers: Sequence[Sequence[Step]]) -> dict[tuple[int, int], Step]:
        return {self._identity_of(step.sample.obs): step for steps in workers for step in steps}

    def _identity_of(self, obs: Observation) -> tuple[int, int]:
        worker, count = obs[0].astype(int).tolist()
        return worker, count
