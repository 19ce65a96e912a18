"""The progress of a run, collected here from the trainer's metrics and drawn by `views`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tmrl_like.base.text import clock
from tmrl_like.config.settings import Settings
from tmrl_like.metrics.reading import Record, return_of
from tmrl_like.metrics.sinks import describe_warm_up, rows_of_round

_RECENT_TESTS = 10
_BARS = "▁▂▃▄▅▆▇█"


@dataclass
class Progress:
    """The state of a run.

    Attributes:
        settings: the settings of the run.
        tests: return of each test episode so far, and whether it reached a terminal state.
        train_returns: returns of all training episodes so far.
        last_round: the newest round's record.
        warm_up: the newest record from before the first training step.
        now: a clock, in seconds.
    """

    settings: Settings
    tests: list[tuple[float, bool]] = field(default_factory=list)
    train_returns: list[float] = field(default_factory=list)
    last_round: Record = field(default_factory=dict)
    warm_up: Record = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    _started_at: float | None = None
    _finished_after_s: float | None = None

    def add(self, record: Record) -> None:
        self._started_at = self.now() - (record.get("time_s") or 0.0)
        if record.get("kind") == "round":
            self.last_round = record
        elif record.get("kind") == "warm_up":
            self.warm_up = record
        elif (return_ := return_of(record)) is not None:
            if record["test"]:
                self.tests.append((return_, record["terminated"]))
            else:
                self.train_returns.append(return_)

    def finish(self) -> None:
        """Stop the clock, because training is over."""
        self._finished_after_s = self.elapsed_s()

    def elapsed_s(self) -> float:
        """Return the time since the trainer started; 0 before its first record."""
        if self._finished_after_s is not None:
            return self._finished_after_s
        return 0.0 if self._started_at is None else self.now() - self._started_at

    def left_s(self) -> float | None:
        """Return the time left until the time limit or the last round, whichever comes first; None
        while it is unknown.
        """
        if self._started_at is None or self._finished_after_s is not None:
            return None
        whole_s = min(self.settings.trainer.max_minutes * 60, self._rounds_take_s())
        return max(0.0, whole_s - self.elapsed_s()) if math.isfinite(whole_s) else None

    def _rounds_take_s(self) -> float:
        """Estimate how long all rounds take, at the pace so far, wait for first samples included.

        The newest rounds alone would be misleading: the first rounds use samples that had arrived
        before them.
        """
        if not self.last_round:
            return math.inf
        section = self.settings.trainer
        done = self.last_round["epoch"] * section.rounds + self.last_round["round"] + 1
        pace_s: float = self.last_round["time_s"] / done
        return pace_s * section.epochs * section.rounds

    def times(self) -> str:
        """Return elapsed and remaining time as a text."""
        gone, left_s = f"{clock(self.elapsed_s())} of training", self.left_s()
        return gone if left_s is None else f"{gone}, {clock(left_s)} left"

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values for people, the most interesting first."""
        test_returns = [return_ for return_, _ in self.tests]
        rows = [
            ("test return", _of_returns(test_returns)),
            ("training return", _of_returns(self.train_returns)),
        ]
        tests = self.tests[-_RECENT_TESTS:]
        # an environment may have no terminal state
        if any(terminated for _, terminated in self.tests):
            share = sum(terminated for _, terminated in tests) / len(tests)
            rows.append(
                ("terminal state", f"reached in {share:.0%} of the last {len(tests)} tests")
            )
        if self.last_round:
            rows += rows_of_round(self.last_round)
        else:
            rows.append(
                (
                    "training",
                    describe_warm_up(self.warm_up) if self.warm_up else "waiting for samples",
                )
            )
        return [(name, words) for name, words in rows if words]


def _of_returns(returns: Sequence[float]) -> str:
    if not returns:
        return ""
    recent = returns[-_RECENT_TESTS:]
    mean = sum(recent) / len(recent)
    return f"{returns[-1]:.2f}, mean of {len(recent)}: {mean:.2f}  {sparkline(returns)}"


def sparkline(returns: Sequence[float], width: int = 40) -> str:
    """Return returns as a line of bars; of more than `width`, only every second, third, …"""
    shown = returns[:: math.ceil(len(returns) / width)]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)
