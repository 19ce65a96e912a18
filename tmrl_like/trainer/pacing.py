"""How far training may run ahead of the environment: a number, or what the machine can give. No clock, no thread."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tmrl_like.base.schedules import value_at
from tmrl_like.errors import ConfigError
from tmrl_like.trainer.options import Schedule

_WINDOW_STEPS, _RESTING_STEPS = 200, 100  # of the workers, from one judgement to the next
_KEPT_SAMPLES = 50  # whose training steps may still be made later
_LATE_SHARE = 0.01  # of a worker's steps
_LATE_S = 0.3  # of a packet
_LINK_WAS_DOWN_S = 5.0  # a packet that is later was not held up by training
_CUT, _RISE, _LEAST, _USED_UP = 0.7, 1 / 20, 1 / 50, 0.9


@dataclass
class _Window:
    """What was seen since the last judgement."""

    driven: tuple[int, int] = (0, 0)  # at its beginning, like training_steps
    training_steps: int | None = None  # None: before the first packet, of a training that may have been resumed
    granted: float = 0.0
    packets: int = 0
    late_packets: int = 0
    age_s: float = 0.0  # of all packets


@dataclass
class Pacer:
    """Caps training steps per environment step, once there is a worker.

    Recorded samples count as environment steps, but there will be no more of them: until a worker has sent a sample,
    training goes on without a limit, and its steps beyond the ratio are not held against the worker.

    With `auto`, a sample allows `ratio` training steps when it arrives, at first as many as the bound. Steps that were
    not made are forgiven but for those of 50 samples, so that no burst follows a time in which training was slower.
    After 200 environment steps of the workers, or as soon as too many of them are overruns, the ratio is judged:
    additive increase, multiplicative decrease.

    - More than 1 % of these steps were overruns, or most packets came more than 0.3 s late: 0.7 of what was used of it.
    - Training used it up: a twentieth of the bound more.
    - Training is slower than that: it stays.

    In lockstep, once samples have come whose worker awaits training, a training step is made only on a task. Each
    environment step from here on allows `ratio` of them (in sum: of 0.5, every second step allows one), but for those
    before `start_training` and before the memory can give a batch, a reset's and those of a data set.

    What is late while training rests (before `start_training`, in test episodes) or at the smallest ratio, a fiftieth
    of the bound, is the worker's own: twice that share of overruns is tolerated as well, and packets are late that are
    later than then.

    Attributes:
        schedule: has `start_training`, and the ratio at the beginning.
        limit: training steps per sample at most, or `auto`: the schedule's ratio, or less for `sample_uses`.
        bound: what `auto` never exceeds.
        recorded_samples: samples that were in the memory before training began: a data set's, or those of a memory
            that was taken over without its agent.
        unpaced_steps: training steps that are allowed beyond the ratio: made before the first sample of a worker, or
            by what the ratio was before; below 0 it is the other way round.
        ratio: with `auto`, training steps that a sample allows now.
        allowed_steps: with `auto`, the training steps up to which training may go.
        held_by: with `auto`, what holds the ratio: "bound", "overruns", "sample age" or "learner".
        in_lockstep: whether training is.
        tasked_steps: in lockstep, environment steps so far that allow tasks.
        untasked_training: training steps that were made before; corrected where the ratio was another one.
        own_late_share: overruns of all steps while training rests.
        own_age_s: age of packets while training rests; .inf: not known.
    """

    schedule: Schedule
    recorded_samples: int = 0
    unpaced_steps: float = 0
    ratio: float = math.inf
    allowed_steps: float = 0.0
    held_by: str = "bound"
    in_lockstep: bool = False
    tasked_steps: int = 0
    untasked_training: float = 0
    own_late_share: float = 0.0
    own_age_s: float = math.inf
    limit: Any = field(default=0.0, init=False)
    bound: float = field(default=math.inf, init=False)
    _window: _Window = field(default_factory=_Window, init=False, compare=False)

    def __post_init__(self) -> None:
        self.limit = value_at(self.schedule.max_training_steps_per_env_step)
        self.bound = self.schedule.auto_ratio_bound

    def follow(self, limit: Any, bound: float, training_steps: int, samples: int) -> None:
        """Have another limit or bound from here on.

        What was allowed until now stays so, and what was not made of it is forgiven but for that of 50 samples.

        Raises:
            ConfigError: training is in lockstep, and the limit is no number that a worker could await.
        """
        self.check(limit)
        self.bound = bound
        if limit == self.limit:
            return
        if self.in_lockstep:
            self.untasked_training += (self.limit - limit) * self.tasked_steps
        elif limit == "auto":
            self.allowed_steps = training_steps
        elif samples > self.recorded_samples:
            owed = min(self._allowed(samples) - training_steps, _KEPT_SAMPLES * limit)
            self.unpaced_steps = 0.0 if limit == math.inf else training_steps + owed - limit * samples
        self.limit = limit

    def expect_no_worker(self, samples: int) -> None:
        """Training goes by the samples that there are, without a limit, until a worker sends one."""
        self.recorded_samples, self.in_lockstep, self.tasked_steps = samples, False, 0

    def check(self, limit: Any) -> None:
        """Raise ConfigError where training is in lockstep, and this is no limit for that."""
        if self.in_lockstep and limit in ("auto", math.inf):
            raise ConfigError(
                f"max_training_steps_per_env_step is {limit}, and a worker gathers in lockstep (synchronous): "
                "expected a finite number"
            )

    def _allowed(self, samples: int) -> float:
        return self.allowed_steps if self.limit == "auto" else float(self.limit * samples + self.unpaced_steps)

    def may_train(self, training_steps: int, samples: int) -> bool:
        """Whether one more training step is allowed after `training_steps`, with `samples` recorded or received."""
        if samples < max(1, self.schedule.start_training):
            return False
        if self.in_lockstep:
            return not self.is_done(training_steps, self.tasked_steps)
        if samples == self.recorded_samples:
            return True
        return training_steps + 1 <= self._allowed(samples)

    def enter_lockstep(self, training_steps: int) -> None:
        """Samples come whose worker awaits training; ConfigError: the ratio is no number that it could await."""
        if not self.in_lockstep:
            self.in_lockstep, self.untasked_training = True, training_steps
            self.check(self.limit)

    def is_done(self, training_steps: int, tasked_steps: int) -> bool:
        """In lockstep, whether the tasks of so many environment steps are done after `training_steps`."""
        return bool(training_steps - self.untasked_training + 1 > self.limit * tasked_steps)

    def before_samples(
        self,
        training_steps: int,
        samples: int,
        new: int = 0,
        age_s: float = 0.0,
        driven: tuple[int, int] | None = (0, 0),
    ) -> None:
        """A packet of a worker is about to be added to `samples`, after `training_steps`.

        Args:
            training_steps: made so far.
            samples: recorded or received before.
            new: samples in the packet; 0: they are read back from a log, and with `auto` allow nothing.
            age_s: of its newest sample.
            driven: environment steps of all workers so far and, of these, overruns; None: the packets are another
                trainer's, which judges them.
        """
        if self.limit != "auto":
            if samples == self.recorded_samples > 0:
                self.unpaced_steps = max(0, training_steps - math.floor(min(self.limit * samples, training_steps)))
        else:
            if driven is not None:
                self._watch(training_steps, age_s, driven)
            self._grant(training_steps, new)

    def metrics(self) -> dict[str, Any]:
        """The ratio that is allowed now, and what holds it; nothing without `auto`."""
        if self.limit != "auto":
            return {}
        allowed = min(self.ratio, self.bound)
        return {"training_steps_per_env_step_allowed": allowed, "training_steps_held_by": self.held_by}

    def _grant(self, training_steps: int, new: int) -> None:
        self.ratio = min(self.ratio, self.bound)
        owed = max(0.0, self.allowed_steps - training_steps) + self.ratio * new
        self.allowed_steps = training_steps + min(owed, self.ratio * max(new, _KEPT_SAMPLES))
        self._window.granted += self.ratio * new

    def _watch(self, training_steps: int, age_s: float, driven: tuple[int, int]) -> None:
        window = self._window
        if window.training_steps is None:
            window.training_steps = training_steps
        window.packets += 1
        window.late_packets += _LATE_S < age_s - self.own_age_s < _LINK_WAS_DOWN_S
        window.age_s += age_s
        steps, overruns = driven[0] - window.driven[0], driven[1] - window.driven[1]
        trained = training_steps - window.training_steps
        is_late = trained > 0 and overruns > _WINDOW_STEPS * self._tolerated_share
        if is_late or steps >= (_WINDOW_STEPS if trained else _RESTING_STEPS):
            self._judge(overruns / steps, trained)
            self._window = _Window(driven, training_steps)

    @property
    def _tolerated_share(self) -> float:
        return _LATE_SHARE + 2 * self.own_late_share

    def _judge(self, late_share: float, trained: int) -> None:
        window, bound = self._window, self.bound
        least = bound * _LEAST
        if not trained or self.ratio <= least:
            self.own_late_share += (late_share - self.own_late_share) / 2
            self.own_age_s = window.age_s / window.packets
        if not trained:
            return
        used = min(1.0, trained / max(1.0, window.granted))
        is_late = late_share > self._tolerated_share
        if is_late or window.late_packets > window.packets / 2:
            self.held_by = "overruns" if is_late else "sample age"
            self.ratio = max(least, _CUT * used * self.ratio)
            self.allowed_steps = 0.0  # nothing is owed any more
        elif used < _USED_UP:
            self.held_by = "learner"
        else:
            self.ratio = min(bound, self.ratio + _RISE * bound)
            self.held_by = "bound" if self.ratio == bound else self.held_by
