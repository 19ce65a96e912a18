"""The progress of a run, collected here from the trainer's metrics and drawn by `views`."""

from __future__ import annotations

import itertools
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
    _rounds_s: float = 0.0  # duration of all rounds so far, …
    _busy_s: float = 0.0  # … the part in which training did not wait, …
    _steps: float = 0.0  # … and the training steps and …
    _samples: float = 0.0  # … samples in that time
    _heard_at: float = 0.0
    _heard_time_s: float = 0.0
    _finished_after_s: float | None = None

    def add(self, record: Record) -> None:
        self._heard_at, self._heard_time_s = self.now(), float(record.get("time_s") or 0.0)
        if record.get("kind") == "round":
            self.last_round = record
            duration_s = float(record["round_duration_s"])
            busy_s = max(duration_s - float(record.get("idle_s") or 0.0), 0.0)
            self._rounds_s += duration_s
            self._busy_s += busy_s
            self._steps += record["training_steps_per_s"] * busy_s
            self._samples += record["env_steps_per_s"] * duration_s
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
        return self._heard_time_s + self.now() - self._heard_at if self._heard_at else 0.0

    def left_s(self) -> float | None:
        """Return the time left until the time limit or the last training step, whichever comes
        first; None while it is unknown.
        """
        if not self._heard_at or self._finished_after_s is not None:
            return None
        by_clock = self.settings.trainer.max_minutes * 60 - self.elapsed_s()
        by_steps = self._steps_take_s() - (self.now() - self._heard_at)
        left_s = min(by_clock, by_steps)
        return max(0.0, left_s) if math.isfinite(left_s) else None

    def _steps_take_s(self) -> float:
        """Estimate how long the remaining training steps take, at the pace of the whole run so far.

        The pace is that of the learner, or that of the samples for which the steps wait. The newest
        rounds alone would be misleading: the first rounds use samples that had arrived before them.
        """
        section, record = self.settings.trainer, self.last_round
        if not self._steps or not math.isfinite(section.epochs):
            return math.inf
        rounds = section.epochs * section.rounds - (
            record["epoch"] * section.rounds + record["round"] + 1
        )
        steps_left = rounds * section.steps
        by_learner_s: float = steps_left * self._busy_s / self._steps
        ratio = section.max_training_steps_per_env_step
        if section.sample_uses is not None:  # may be the lower limit
            ratio = min(ratio, record["training_steps_per_env_step"])
        samples_left: float = (record["training_steps_total"] + steps_left) / ratio - record[
            "env_steps_total"
        ]
        if samples_left <= 0 or not self._samples:
            return by_learner_s
        return max(by_learner_s, samples_left * self._rounds_s / self._samples)

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


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return values as a line of bars; more than `width` values are averaged in groups."""
    values = [v for v in values if math.isfinite(v)]
    if not values:
        return ""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(values), max(values)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((v - low) * scale)] for v in values)
