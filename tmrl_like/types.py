"""The data that passes between server, workers and trainer, field by field. Read this first.

Shapes: `[B]` is the batch, `[N]` the rows of a packet, `[]` a scalar. An observation is whatever
nested structure (tuple, list, dict, array, number) the environment's observation space describes;
an action is whatever its action space describes.

Time in one environment step, in the order in which things happen::

    obs(t) --act()--> action(t)
    --env.step()--> obs(t+1), rew(t+1), terminated(t+1), truncated(t+1), info(t+1)

A `Sample` is the right-hand side plus the action that led there. The memory rebuilds a `Transition`
from two consecutive samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias

import msgspec

from tmrl_like.base import tree
from tmrl_like.base.text import one_line
from tmrl_like.errors import MemoryContractError

Observation: TypeAlias = Any
"""A nested structure that matches the environment's observation space."""

Action: TypeAlias = Any
"""A value that matches the environment's action space; for a Box, a float32 array of its shape."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]

_MAX_FAULT_BYTES = 300  # 50 reports with the longest names fit in the header of a packet


class Sample(NamedTuple):
    """What the environment produced in one step, before or after the user's compressor.

    An episode begins with the observation that `reset` returned, with `rew` 0.0 and both flags
    False. If the observation ends in an action buffer, this sample appears once for each action in
    it, oldest first, with that action as `act`. Otherwise it appears once, with the environment's
    default action as `act`, or with a neutral action of the space if the environment has no
    default.
    """

    act: Action  # the action that led to `obs`
    obs: Observation  # what the environment returned, unchanged, or what the compressor kept of it
    rew: Any  # the reward that came with `obs`, in the environment's own type
    terminated: bool  # a terminal state was reached: there is no value beyond it
    truncated: bool  # the episode was cut (time limit, fault, max_samples_per_episode)
    info: dict[str, Any]


class Transition(NamedTuple):
    """One step as an agent learns from it; `MemoryDataloading.get_transition` returns it."""

    last_obs: Observation  # the observation on which the action was chosen
    act: Action
    rew: Any  # follows `act`
    obs: Observation  # follows `act`
    terminated: bool
    truncated: bool
    info: dict[str, Any]  # the `info` of the newer sample: the same object that the buffer held


_BESIDE_THE_SIX = ("discount", "time_left", "next_time_left", "columns")


class _BatchFields(NamedTuple):
    obs: Any
    act: Any
    rew: Any
    next_obs: Any
    terminated: Any
    truncated: Any


class Batch(_BatchFields):
    """What a `TrainingAgent` trains on: tensors on the training device, first dimension B.

    A tuple of six: obs (structure of [B, ...], dtypes of the observation after obs_preprocessor),
    act `[B, *action shape]`, rew float32 [B], next_obs (as obs), terminated float32 [B] (1.0 where
    the episode reached a terminal state), truncated float32 [B] (1.0 where it was cut). Values that
    only some memories add are attributes beside the six:

    Attributes:
        discount: float32 [B], from a memory that sums up several rewards (n-step returns): the
            factor on the value of next_obs in the target, gamma ** steps, which replaces the
            agent's gamma. None: one-step returns.
        time_left: float32 [B], from a memory that draws mini-races: the share of the race that is
            left at obs, above 0 and at most 1; terminated is also 1.0 where the race ends. None:
            there are no races.
        next_time_left: the same at next_obs: 0 to below 1.
        columns: the values of `info` that the memory keeps, of the samples that the actions led to:
            tensors [B, ...] by name. None: it keeps none.
    """

    discount: Any = None
    time_left: Any = None
    next_time_left: Any = None
    columns: dict[str, Any] | None = None

    def __new__(cls, *six: Any, **named: Any) -> Batch:
        """Take the six by position or by name, and the rest by name."""
        beside = {name: named.pop(name) for name in _BESIDE_THE_SIX if name in named}
        batch = super().__new__(cls, *six, **named)
        vars(batch).update(beside)
        return batch

    @property
    def parts(self) -> tuple[Any, ...]:
        """The six, and the values beside them by name, as one structure."""
        return (*self, vars(self))

    def map(self, call: Callable[..., Any], *others: Batch) -> Batch:
        """Return a batch with each tensor replaced by `call` of it and its counterparts in
        `others`.
        """
        *six, beside = tree.map_leaves(
            lambda *leaves: None if leaves[0] is None else call(*leaves),
            *(batch.parts for batch in (self, *others)),
        )
        return Batch(*six, **beside)

    def _replace(self, **changes: Any) -> Batch:
        """Return a copy with some of the six changed."""
        batch = super()._replace(**changes)
        vars(batch).update(vars(self))
        return batch


class ActionSource(IntEnum):
    """What chose an action."""

    # the actor; also the source of an episode's first samples, whose action nobody chose
    POLICY = 0
    SAFE = 1  # the safe action, because the policy was too old, missing, or not finite
    HUMAN = 2  # a person who took over: keys, a gamepad
    EXPERT = 3  # an actor that ignores policies, for every sample of its episodes: a demonstration
    PROGRAM = 4  # a program that took over


TAKEN_OVER = (ActionSource.HUMAN, ActionSource.PROGRAM)
"""The sources of an action that was chosen by a person or program that took over from the
policy.
"""


class StepTiming(NamedTuple):
    """When one step happened, how long it took, and what chose the action. Travels with every
    sample.
    """

    # Unix time (seconds, `base.clocks.unix_s`) at which `obs` reached the worker
    observed_at_s: float
    inference_s: float  # duration of the `act()` call that chose this sample's action; 0 on reset
    # time since the previous observation minus the nominal time-step; 0 on reset
    period_error_s: float
    policy_version: int  # version of the policy in use; 0: not a published one
    source: ActionSource = ActionSource.POLICY  # what chose the action


class Info(dict[str, Any]):
    """The `info` dictionary of a sample inside a `Buffer`: a plain dict plus the framework's own
    data.

    A memory stores and returns it like any other dict. The base class of memories reads the
    attributes to keep transitions across a reset out of every batch, and for CRC debugging.

    Attributes:
        is_reset: True for the samples of a reset, one for each action of the episode's first action
            buffer (one if there is no buffer): no transition ends here.
        is_context: True for a repeated sample that only serves as history: no transition ends here.
        timing: see `StepTiming`; None if the worker did not measure.
        original: under CRC debugging, the transition as the environment produced it (without the
            info field), else None.
        episode: the number of the sample's episode in its stream, modulo 100.
    """

    __slots__ = ("episode", "is_context", "is_reset", "original", "timing")

    def __init__(
        self,
        items: dict[str, Any] | None = None,
        is_reset: bool = False,
        is_context: bool = False,
        timing: StepTiming | None = None,
        original: tuple[Any, ...] | None = None,
        episode: int = 0,
    ) -> None:
        super().__init__(items or {})
        self.episode = episode
        self.is_reset = is_reset
        self.is_context = is_context
        self.timing = timing
        self.original = original


class EpisodeStats(msgspec.Struct, frozen=True, rename={"return_": "return"}):
    """The report of one finished episode, made by the worker that ran it. It appears in the
    worker's packets, in memory and in metrics.jsonl.

    Each report stands alone: nothing is overwritten when several workers or episodes report at
    once.
    """

    worker: str  # the worker's name
    test: bool  # a test episode: act(test=True), no samples were stored
    return_: float  # sum of rewards
    steps: Count
    terminated: bool
    truncated: bool
    finished_at_s: float  # Unix time
    # of what drove at its end; 0: it was never published, or did not drive a test alone
    policy_version: Count
    duration_s: float = 0.0
    overruns: Count = 0  # time-steps that missed their deadline in this episode
    fault: str = ""  # how the environment ended the episode, if it raised or hung

    def __post_init__(self) -> None:
        if self.fault:
            fault = one_line(self.fault).encode()[:_MAX_FAULT_BYTES].decode(errors="ignore")
            msgspec.structs.force_setattr(self, "fault", fault)


class Block(Protocol):
    """The samples of one packet as columns; `wire.packet.SampleBlock` is the form that is sent.

    Each of `segments` holds consecutive samples of one structure. It has `rows` and a `tree()`: the
    structure (act, obs, rew, terminated, truncated, info) with arrays [rows, ...] as leaves. These
    are views and must be copied to be kept. `is_reset` is a bool array [N], `episode` uint8 [N]:
    see `Info`.
    """

    @property
    def segments(self) -> tuple[Any, ...]: ...
    @property
    def is_reset(self) -> Any: ...
    @property
    def episode(self) -> Any: ...
    @property
    def timing(self) -> Any: ...
    def samples(self) -> list[Sample]: ...
    def __len__(self) -> int: ...


class Buffer:
    """Samples of one worker in the order in which it produced them, as handed to `append_buffer`.

    Attributes:
        stream: the worker process that they come from.
        blocks: the same samples as columns, for memories that want whole columns; empty if the
            buffer was made from single samples.
    """

    def __init__(
        self, memory: Sequence[Sequence[Any]] = (), stream: str = "", blocks: Sequence[Block] = ()
    ) -> None:
        self.stream = stream
        self.blocks = tuple(blocks)
        self._memory: list[Sample] | None = None if blocks else [_as_sample(row) for row in memory]

    @property
    def memory(self) -> list[Sample]:
        """The samples (compressed, if a compressor is used); each `info` is an `Info`."""
        if self._memory is None:
            self._memory = [sample for block in self.blocks for sample in block.samples()]
        return self._memory

    def __len__(self) -> int:
        return sum(map(len, self.blocks)) if self.blocks else len(self.memory)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.memory)


class Receipt(NamedTuple):
    """How many entries of one worker process have arrived; identifies what an acknowledgement (of a
    `SamplePacket`) covers.
    """

    worker: str
    incarnation: int  # which process of that worker
    entry: int  # all entries up to this one have been taken, in order


@dataclass(frozen=True, slots=True)
class Delivery:
    """The new content of a packet that arrived at the trainer.

    Attributes:
        buffer: the samples; may be empty.
        episodes: reports of finished episodes, including test episodes.
        receipt: names the packet's last entry; None if there is nothing to acknowledge.
        awaits: in lockstep: the worker holds still until the training steps that these samples
            allow are done.
        ahead_s: how far the Unix times of these samples are ahead of the trainer's
            (`base.clocks.unix_s`).
    """

    buffer: Buffer
    episodes: tuple[EpisodeStats, ...] = ()
    receipt: Receipt | None = None
    awaits: bool = False
    ahead_s: float = 0.0


def check_items(what: str, value: object, names: tuple[str, ...]) -> None:
    """Raise MemoryContractError unless a value has one item for each of these names; `what` is the
    beginning of the message.
    """
    count = len(value) if isinstance(value, tuple | list) else 0
    if count == len(names):
        return
    found = f"{count} items" if count else f"a {type(value).__name__}"
    is_old = count == len(names) - 1
    hint = ": the old `done` is split into `terminated` and `truncated`" if is_old else ""
    raise MemoryContractError(f"{what} {found}; expected ({', '.join(names)}){hint}")


def _as_sample(row: Sequence[Any]) -> Sample:
    check_items("a sample has", row, Sample._fields)
    act, obs, rew, terminated, truncated, info = row
    return Sample(act, obs, rew, terminated, truncated, Info(info) if type(info) is dict else info)


class SampleCompressor(Protocol):
    """Drops from a sample what the memory can rebuild. Runs on the worker, before sending."""

    def __call__(
        self,
        act: Action,
        obs: Observation,
        rew: Any,
        terminated: bool,
        truncated: bool,
        info: dict[str, Any],
        /,
    ) -> Sequence[Any]:
        """Return (act, obs, rew, terminated, truncated, info), each possibly reduced."""


class Driver(Protocol):
    """Takes over from the policy at will and hands back: keys, a gamepad, a program.

    It is constructed with the keyword arguments `action_space` and `default_action` (the default
    action of the environment's resets), and `observation_space` if it takes that. It is called a
    hundred times a second in its own thread, beside the control loop; the loop uses the newest
    answer and never waits for one. A driver that raises, or does not answer for half a second, is
    ignored until it answers again. An attribute `is_program = True` marks its actions as a
    program's, not a person's.
    """

    def __call__(self, obs: Observation, /) -> Action | None:
        """Return the action to send from now on, or None to let the policy drive.

        `obs` is the newest observation; it must not be modified.
        """

    def close(self) -> None:
        """Release its resources. Called from another thread; calling it twice is fine."""


class ObsPreprocessor(Protocol):
    """Changes an observation right before the model sees it, both on the worker and in the
    memory.
    """

    def __call__(self, obs: Observation, /) -> Observation:
        """Return the observation as the model should see it."""


class SamplePreprocessor(Protocol):
    """Changes a whole transition in the memory, after `ObsPreprocessor`, e.g. for data
    augmentation.
    """

    def __call__(
        self,
        last_obs: Observation,
        act: Action,
        rew: Any,
        obs: Observation,
        terminated: Any,
        truncated: Any,
        /,
    ) -> Sequence[Any]:
        """Return the same six values, changed or not."""
