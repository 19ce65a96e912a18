"""What a `ReplayMemory` keeps of samples, and what its transitions are: its options on a page."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from tmrl_like.base.options import Options, Positive
from tmrl_like.errors import ConfigError, expect
from tmrl_like.replay.compressor import DropHistory, FrameStack, stacks_in
from tmrl_like.replay.mini_races import MiniRaces


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Options):
    """Options of `ReplayMemory`.

    Attributes:
        act_buf_len: how many actions the environment appends to its observations; the compressor
            has dropped them. 0: none.
        frame_stack: which part of an observation is a stack of the last k frames, an array [k,
            ...], newest last; the compressor has kept the newest. 4: the observation itself,
            {"camera": 4} or {3: 4}: an item of a dict or tuple; 0: none.
        frame_padding: what the environment puts before an episode's first frame: "reset", that
            frame again, or "zero".
        columns: items of `info`, arrays or numbers, that are kept as everything else is and come
            back in `Batch.columns` and `Transition.info`: of the sample that the action led to.
            Every step must bring them; zeros stand for what the samples of a reset do not bring.
            "steps_to_end" is counted here: the steps from the older observation to the one that
            terminated the episode, int32; 2^31 - 1 where it did not terminate, or has not yet.
        n_steps: how many rewards a transition sums up (see `replay.transitions`). From 2 on `rew`
            is their discounted sum, next_obs, terminated and truncated are the last step's, and
            `Batch.discount` says what the value of next_obs counts.
        gamma: discount per step; needed for n_steps above 1, shaping and mini-races, and then the
            agent's.
        greedy_only: fewer steps are summed up where one of them, not the first, was not the
            policy's best: info has "greedy" then, which is among the columns.
        shaping: weight of the potentials in info's "potential", which is among the columns then
            (see `replay.transitions`); 0: they are kept and do not count. None: there are none.
        mini_races: put each transition at a random moment of a race of a few seconds, whose end is
            the end of all that counts (see `replay.mini_races`); the agent must take
            `Batch.time_left`. None: there are no races.
        time_step_duration: of the environment, in seconds, for mini-races in seconds; None: it is
            not known.
        held_out: share of the episodes, 0 to below 1, that training never draws from:
            `sample_held_out` does. Which they are depends on their numbers in their lane alone:
            with 0.05 the 10th, the 30th, …
        scratch_dir: a folder on a disk with room for the columns, for a memory that is larger than
            RAM. They are in files without names there, which are gone when the memory is. None: in
            RAM.
    """

    act_buf_len: int = 0
    frame_stack: FrameStack = 0
    frame_padding: Literal["reset", "zero"] = "reset"
    columns: Sequence[str] = ()
    n_steps: Positive = 1
    gamma: float | None = None
    greedy_only: bool = False
    shaping: float | None = None
    mini_races: MiniRaces | None = None
    time_step_duration: float | None = None
    held_out: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    scratch_dir: str | None = None

    def __post_init__(self) -> None:
        DropHistory(self.act_buf_len, self.frame_stack)
        super().__post_init__()
        check_weights(self.gamma, self.shaping)
        looks_ahead = self.n_steps > 1 or self.shaping is not None or self.mini_races is not None
        if looks_ahead and self.gamma is None:
            raise ConfigError(
                f"n_steps is {self.n_steps} and there is no gamma: for more steps than 1, with "
                "shaping and with mini-races the memory needs the agent's gamma"
            )
        if self.scratch_dir is not None and not os.path.isdir(self.scratch_dir):
            raise ConfigError(f"there is no folder {self.scratch_dir}, which scratch_dir names")

    @property
    def frames(self) -> int:
        """Of the largest stack; 0: there is none."""
        return max(stacks_in(self.frame_stack).values(), default=0)

    @property
    def kept(self) -> tuple[str, ...]:
        """All columns: those that are named, and what rewards depend on."""
        names = list(self.columns)
        if self.greedy_only:
            names.append("greedy")
        if self.shaping is not None:
            names.append("potential")
        return tuple(dict.fromkeys(names))

    @property
    def race_steps(self) -> int:
        """How many steps a mini-race has; 0: there are none."""
        return 0 if self.mini_races is None else self.mini_races.length(self.time_step_duration)


def check_weights(gamma: float | None, shaping: float | None) -> None:
    """Raise ConfigError for what a discount and a weight of potentials cannot be; None: there is
    none.
    """
    expect(gamma is None or 0.0 <= gamma <= 1.0, "gamma", gamma, "0 to 1")
    expect(shaping is None or math.isfinite(shaping), "shaping", shaping, "a finite number")
