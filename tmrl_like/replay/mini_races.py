"""Mini-races: a view of the memory in which each transition is at some moment of a race of T steps.

Nothing of it is stored. When a transition is drawn, so is u, the number of steps left in its race,
uniformly from 1 to T. Of the k rewards that an n-step transition sums up (see `transitions`), those
beyond the end of the race are left out:

    k' = min(k, u)
    y  = r(1) + gamma r(2) + ... + gamma^(k'-1) r(k') + gamma^k' (1 - d) V(obs(k'), (u - k') / T)

d is 1 if the race is over (k' = u) or step k' terminated the episode, else 0. Beside the
observation, the network sees u / T. Its value is that of the next u steps alone, so gamma may be 1:

    V(obs, u / T) = E[r(1) + r(2) + ... + r(u)]

A worker always acts at the start of a race (u = T), and so chooses what brings the most reward in
the next T steps. Values that depend on the time left are from Pardo et al., "Time Limits in
Reinforcement Learning", 2018 (arXiv:1712.00378, section 3); drawing that time for each transition
is an idea of Linesight's, for TrackMania.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from tmrl_like.base.options import Options
from tmrl_like.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class MiniRaces(Options):
    """Options for drawing mini-races; see `ReplayMemory(mini_races=…)`.

    Attributes:
        seconds: length of a race; needs the environment's time-step (`time_step_duration` of the
            memory).
        steps: length of a race in environment steps, T; takes precedence over `seconds`. None:
            `seconds` applies.
    """

    seconds: Annotated[float, Meta(gt=0, le=1e9)] = 7.0
    steps: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    def length(self, time_step_duration: float | None) -> int:
        """Return T. Raises ConfigError if `seconds` applies and the time-step is unknown."""
        if self.steps is not None:
            return self.steps
        if not time_step_duration:
            raise ConfigError(
                f"mini-races of {self.seconds:g} s need the environment's time-step, which is not "
                "known here: give the memory time_step_duration, in seconds, or MiniRaces steps"
            )
        return max(1, round(self.seconds / time_step_duration))
