"""Trouble at random, and the same trouble again: seeded actions at random times, bounded in number and time."""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tmrl_like.errors import ConfigError

log = logging.getLogger(__name__)

SEED_VARIABLE = "TMRL_LIKE_CHAOS_SEED"


def chaos_seed() -> int:
    """A new seed, or the one that the variable TMRL_LIKE_CHAOS_SEED asks for again.

    Raises:
        ConfigError: the variable holds no whole number.
    """
    asked = os.environ.get(SEED_VARIABLE, "")
    if not asked:
        return random.SystemRandom().randrange(1 << 32)
    try:
        return int(asked)
    except ValueError:
        raise ConfigError(f"{SEED_VARIABLE} is {asked!r}; it must be a whole number") from None


def log_uniform(rng: random.Random, low: float, high: float) -> float:
    """A number between two, small ones as likely as large ones: as many in 0.1 to 1 as in 1 to 10."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


@dataclass(eq=False)
class Schedule:
    """Calls actions, one at a time, each drawn at random, with random pauses in between.

    Args:
        actions: by name; each is called with the schedule's random generator.
        seed: of everything that is drawn.
        count: how many actions in all.
        pause_s: shortest and longest pause before an action, in seconds; drawn log-uniformly.
        within_s: no action begins after this time, in seconds.
    """

    actions: Mapping[str, Callable[[random.Random], object]]
    seed: int
    count: int
    pause_s: tuple[float, float] = (0.1, 2.0)
    within_s: float = math.inf
    journal: list[tuple[float, str]] = field(default_factory=list, init=False)

    def run(self) -> int:
        """Run to the end; blocks. Returns how many actions were called; `journal` says when and which."""
        rng = random.Random(self.seed)
        started = time.monotonic()
        for _ in range(self.count):
            time.sleep(log_uniform(rng, *self.pause_s))
            if time.monotonic() - started > self.within_s:
                break
            name = rng.choice(list(self.actions))
            self.journal.append((time.monotonic() - started, name))
            log.debug("%s", name)
            self.actions[name](rng)
        return len(self.journal)

    def __str__(self) -> str:
        """The seed and the last actions, for the message of a failure."""
        last = ", ".join(f"{name} at {at_s:.2f} s" for at_s, name in self.journal[-5:])
        return f"{len(self.journal)} actions with {SEED_VARIABLE}={self.seed}, last {last or 'none'}"
