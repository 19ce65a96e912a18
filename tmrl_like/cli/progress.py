"""The progress of a run, collected here from the trainer's metrics and drawn by `views`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tmrl_like.base.text import clock, duration
from tmrl_like.config.settings import Settings
from tmrl_like.metrics.reading import Record
from tmrl_like.metrics.sinks import DOES_IT_LEARN, describe_warm_up, learns_in_words, loss_in_words

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
        elif record.get("kind") == "episode" and record.get("return") is not None:
            if record["test"]:
                self.tests.append((record["return"], record["terminated"]))
            else:
                self.train_returns.append(record["return"])

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
            rows += _of_a_round(self.last_round)
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
    return f"{returns[-1]:9.2f}  mean of {len(recent)}: {mean:9.2f}  {sparkline(returns)}"


def _of_a_round(r: Record) -> list[tuple[str, str]]:
    """Return the rows of a round's record; a row without content has an empty value."""
    training = f"{r['training_steps_total']:,} steps  {r['training_steps_per_s']:.0f}/s"
    ages = [(name, r.get(f"{name}_age_p50_s")) for name in ("sample", "policy")]
    faults, rejected = r.get("env_faults_total"), r.get("rejected_workers_total")
    return [
        ("samples", f"{r['env_steps_total']:,}  {r['env_steps_per_s']:.1f}/s"),
        ("training", f"{training}  {r['training_steps_per_env_step']:.2f} per sample"),
        (DOES_IT_LEARN, learns_in_words(r)),
        ("loss", loss_in_words(r)),
        (
            "median age",
            ", ".join(f"{name} {duration(age_s)}" for name, age_s in ages if age_s is not None),
        ),
        ("overruns", f"{r.get('overruns_total') or 0:.0f}"),
        (
            "faults",
            f"{faults:.0f} of the environment, rebuilt: {r['env_rebuilds_total']:.0f}"
            if faults
            else "",
        ),
        (
            "rejected",
            f"{rejected:.0f} worker processes, whose samples do not fit" if rejected else "",
        ),
    ]


def sparkline(returns: Sequence[float], width: int = 40) -> str:
    """Return returns as a line of bars; of more than `width`, only every second, third, …"""
    shown = returns[:: math.ceil(len(returns) / width)]
    low, high = min(shown), max(shown)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in shown)
