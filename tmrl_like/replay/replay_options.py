"""The options of `ReplayMemory`: what it keeps of samples, and what its transitions are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tmrl_like.base.options import Natural, Options, Positive, Reward
from tmrl_like.errors import ConfigError, expect
from tmrl_like.replay.compressor import DropHistory, FrameStack, stacks_in


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Options):
    """Options of `ReplayMemory`.

    Attributes:
        act_buf_len: number of actions that the environment appends to its observations, and the
            compressor drops. 0: none.
        frame_stack: which part of an observation is a stack of the last k frames, an array [k,
            ...], newest last, of which the compressor keeps the newest. 4: the observation itself;
            {"camera": 4} or {3: 4}: an item of a dict or tuple; 0: none. An episode's first frame
            stands for those before it, too.
        columns: items of `info`, arrays or numbers, that are kept and returned in `Batch.columns`
            and `Transition.info`, from the sample that the action led to. Every step must bring
            them; samples of a reset that lack them get zeros. "steps_to_end" is counted by the
            memory: the steps from the older observation to the one that terminated the episode,
            int32; 2^31 - 1 if the episode has not terminated.
        n_steps: how many rewards a transition sums up (see `replay.transitions`). From 2 on, `rew`
            is their discounted sum, next_obs, terminated and truncated are the last step's, and
            `Batch.discount` is the factor on the value of next_obs.
        gamma: discount per step, which must equal the agent's; needed for n_steps above 1, shaping
            and mini-races.
        greedy_only: end a sum before an action, other than its first, that was not the policy's
            best; `info` must then have "greedy", which joins the columns.
        shaping: weight, -1e6 to 1e6, of the potentials, `info["potential"]`, which then join the
            columns (see `replay.transitions`); 0: they are kept and do not count. None: there are
            none.
        mini_races: length in seconds of a race, at a random moment of which each transition is put
            and beyond whose end nothing counts (see `replay.transitions`); the agent must take
            `Batch.time_left`. None: there are no races.
        time_step_duration: the environment's time-step in seconds, for mini-races; None: unknown.
        held_out: share of the episodes, 0 or 0.005 to below 0.995, that is never drawn for
            training, only by `sample_held_out`. An episode's number in its lane alone decides: with
            0.05 it is the 10th, the 30th, …
    """

    act_buf_len: Natural = 0
    frame_stack: FrameStack = 0
    columns: Sequence[str] = ()
    n_steps: Positive = 1
    gamma: Annotated[float, Meta(ge=0, le=1)] | None = None
    greedy_only: bool = False
    shaping: Reward | None = None
    mini_races: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    time_step_duration: float | None = None
    held_out: Annotated[float, Meta(ge=0, lt=1)] = 0.0

    def __post_init__(self) -> None:
        DropHistory(self.act_buf_len, self.frame_stack)
        super().__post_init__()
        expect(not isinstance(self.columns, str), "columns", self.columns, "a list of names")
        looks_ahead = self.n_steps > 1 or self.shaping is not None or self.mini_races is not None
        if looks_ahead and self.gamma is None:
            raise ConfigError(
                f"n_steps is {self.n_steps} and there is no gamma: for more steps than 1, with "
                "shaping and with mini-races the memory needs the agent's gamma"
            )

    @property
    def frames(self) -> int:
        """Number of frames of the largest stack; 0: there is none."""
        return max(stacks_in(self.frame_stack).values(), default=0)

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of all columns: those in `columns`, and those that rewards depend on."""
        names = list(self.columns)
        if self.greedy_only:
            names.append("greedy")
        if self.shaping is not None:
            names.append("potential")
        return tuple(dict.fromkeys(names))

    @property
    def race_steps(self) -> int:
        """Number of steps of a mini-race; 0: there are no races.

        Raises:
            ConfigError: there are races, and the time-step is unknown.
        """
        if self.mini_races is None:
            return 0
        if not self.time_step_duration:
            raise ConfigError(
                f"mini-races of {self.mini_races:g} s need the environment's time-step, which is "
                "not known here: give the memory time_step_duration, in seconds"
            )
        return max(1, round(self.mini_races / self.time_step_duration))
