"""What changes while training goes on: hyper-parameters on schedules, and those that somebody changes meanwhile."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from numbers import Real
from typing import Any

import msgspec

from tmrl_like.base.factories import MISSING, argument_of, signature_of, taken_apart
from tmrl_like.base.schedules import ValueSchedule, as_plain, from_plain, value_at
from tmrl_like.errors import ConfigError, expect
from tmrl_like.trainer.options import LIVE, Schedule

log = logging.getLogger("tmrl_like.trainer")

_RATIO, _USES, _GAMMA = "trainer.max_training_steps_per_env_step", "trainer.sample_uses", "memory.gamma"


class Tuning:
    """The hyper-parameters of a training that may change, each by its name in an experiment: "agent.lr_actor".

    Agent and memory never see a schedule: they are given its value as it is now. All ranks of a training change the
    same between the same two training steps.

    Attributes:
        given: what the script or the file says that made the training; numbers, schedules, and None where it leaves
            one to the class.
        wanted: the same with what was changed since.
    """

    def __init__(self, training: Any, agent_cls: Callable[..., Any], memory_cls: Callable[..., Any]) -> None:
        """Read what is given; `training` is the `TrainingOffline` that has made agent and memory of these factories."""
        self._training = training
        self._asked: deque[tuple[dict[str, Any], bool, Future[None]]] = deque()
        self._changed: set[str] = set()
        self._whole: set[str] = set()
        self.given: dict[str, Any] = {f"trainer.{name}": getattr(training, name) for name in LIVE}
        for part, factory in (("trainer", Schedule), ("agent", agent_cls), ("memory", memory_cls)):
            target, arguments = taken_apart(factory)
            parameters = signature_of(target).parameters
            for name in LIVE if part == "trainer" else getattr(getattr(training, part), "tunable", ()):
                if part != "trainer":
                    value = argument_of(factory, name)
                    if name not in arguments:  # but perhaps given to the memory that this one is made of
                        inner = argument_of(factory, f"memory.{name}")
                        value = value if inner is MISSING else inner
                    self.given[f"{part}.{name}"] = None if value is MISSING else value
                if name in parameters and parameters[name].annotation is int:
                    self._whole.add(f"{part}.{name}")
        self.wanted = dict(self.given)
        self._expect_points_fit(self.given)

    def ask(self, values: Mapping[str, Any], given: bool = False) -> Future[None]:
        """See `TrainingOffline.tune`. `given`: the file that made the training says so, and a resumption will, too."""
        for name in values:
            if name not in self.given:
                raise ConfigError(f"{name} cannot change while training; {', '.join(self.given)} can")
            self._check_type(name, values[name])
        done: Future[None] = Future()
        self._asked.append((dict(values), given, done))
        return done

    def _check_type(self, name: str, value: Any) -> None:
        """Raise ConfigError where it is no number, or a schedule that nobody follows."""
        is_of_trainer, is_whole = name.startswith("trainer."), name in self._whole
        if isinstance(value, ValueSchedule):
            fits = not is_of_trainer or name in (_RATIO, _USES)
        elif isinstance(value, Real):
            fits = not is_whole or float(value).is_integer()
        else:
            fits = (value is None and name == _USES) or (isinstance(value, str) and name == _RATIO)
        expect(fits, name, value, "a whole number" if is_whole else "a number")

    def _expect_points_fit(self, values: Mapping[str, Any]) -> None:
        """Raise ConfigError, and change nothing, where a schedule among these leads to what cannot be."""
        scheduled = {n: v for n, v in values.items() if isinstance(v, ValueSchedule) and n[:8] != "trainer."}
        before = {name: now for name in scheduled if (now := self._now(name)) is not None}
        try:
            for count in sorted({count for value in scheduled.values() for count in value.points}):
                self._set({name: self._rounded(name, value.at(count, count)) for name, value in scheduled.items()})
        finally:
            self._set(before)

    def begin_round(self) -> None:
        """Change what rank 0 was asked to change, and follow the schedules."""
        ranks, asked = self._training.ranks, [self._asked.popleft() for _ in range(len(self._asked))]
        requests = [({name: as_plain(value) for name, value in values.items()}, given) for values, given, _ in asked]
        if ranks.size > 1:
            requests = msgspec.msgpack.decode(ranks.broadcast(msgspec.msgpack.encode(requests)), strict=False)
        outcomes = [self._change({name: from_plain(v) for name, v in values.items()}, g) for values, g in requests]
        for (*_, done), error in zip(asked, outcomes, strict=False):
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        self.follow()

    def _change(self, values: dict[str, Any], given: bool) -> ConfigError | None:
        """Have other values from here on; an error: nothing has changed."""
        if "agent.gamma" in values and isinstance(self.wanted.get(_GAMMA), ValueSchedule):
            values = {_GAMMA: values["agent.gamma"]} | values  # it goes on with the agent's
        before = {name: self._now(name) if self.wanted[name] is None else self.wanted[name] for name in values}
        try:
            self._expect_points_fit(values)
            self._set({name: self._number(name, value) for name, value in values.items()})
        except ConfigError as error:
            return error
        for name, value in values.items():
            if value != before[name]:
                log.info("%s changes: %s -> %s", name, before[name], value)
                self._changed.add(name)
        self.wanted |= values
        if given:
            self.given |= values
        return None

    def follow(self) -> None:
        """Have schedules go on: their values now, to agent, memory and pace."""
        training = self._training
        numbers = {name: self._number(name, v) for name, v in self.wanted.items() if isinstance(v, ValueSchedule)}
        self._set({name: n for name, n in numbers.items() if name[:8] != "trainer." and n != self._now(name)})
        limits = self._limits(training, training.memory.batch_size)
        training.pacer.follow(*limits, training.total_updates, training.total_samples)

    def metrics(self) -> dict[str, Any]:
        """The values in force of what is scheduled or was changed."""
        scheduled = {name for name, value in self.wanted.items() if isinstance(value, ValueSchedule)}
        return {name: value_at(self._now(name), *self._position) for name in sorted(scheduled | self._changed)}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: `given` and `wanted` of each name, as plain values."""
        return {name: [as_plain(given), as_plain(self.wanted[name])] for name, given in self.given.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on as another process left it; but where this one was given another value than that one, with that."""
        for name, said in state.items():
            given, wanted = map(from_plain, said)
            if name not in self.given:
                continue
            if given == self.given[name]:
                self.wanted[name] = wanted
            elif wanted != self.given[name]:
                log.info("%s changes with this resumption: %s -> %s", name, wanted, self.given[name])
            value = self.wanted[name]
            if value is not None and not given == value == self.given[name]:
                try:
                    self._set({name: self._number(name, value)})
                except ConfigError as error:
                    log.warning("%s stays as the checkpoint has it: %s", name, error)
        self.follow()

    @property
    def _position(self) -> tuple[int, int]:
        """Samples that all ranks have heard of, and training steps."""
        return self._training.total_samples - self._training._unsaid_samples, self._training.total_updates

    def _number(self, name: str, value: Any) -> Any:
        """What agent and memory are given; a schedule of the trainer's own stays one."""
        if isinstance(value, ValueSchedule) and name.startswith("trainer."):
            return value
        return self._rounded(name, value_at(value, *self._position))

    def _rounded(self, name: str, number: Any) -> Any:
        return round(number) if name in self._whole else number

    def _now(self, name: str) -> Any:
        part, _, attribute = name.partition(".")
        return getattr(self._training if part == "trainer" else getattr(self._training, part), attribute)

    def _set(self, values: dict[str, Any]) -> None:
        """Give agent, memory and schedule other values, or none of them; ConfigError: one of them cannot be."""
        if not values:
            return
        training = self._training
        parts: dict[str, dict[str, Any]] = {"agent": {}, "memory": {}, "trainer": {}}
        for name, value in values.items():
            part, _, attribute = name.partition(".")
            parts[part][attribute] = value
        gamma = getattr(training.memory, "gamma", None)
        if gamma is not None and "gamma" in parts["agent"]:
            parts["memory"].setdefault("gamma", parts["agent"]["gamma"])
        of_agent = parts["agent"].get("gamma", getattr(training.agent, "gamma", None))
        refuse_two_discounts(parts["memory"].get("gamma", gamma), of_agent)
        schedule = Schedule(**{f.name: getattr(training, f.name) for f in fields(Schedule)} | parts["trainer"])
        limit, _ = self._limits(schedule, parts["memory"].get("batch_size", training.memory.batch_size))
        training.pacer.check(limit)
        before = {name: getattr(training.agent, name) for name in parts["agent"]}
        if parts["agent"]:
            training.agent.tune(**parts["agent"])
        try:
            if parts["memory"]:
                training.memory.tune(**parts["memory"])
        except ConfigError:
            training.agent.tune(**before)
            raise
        for name, value in parts["trainer"].items():
            setattr(training, name, value)
        training.memory.nb_steps = training.steps

    def _limits(self, schedule: Schedule, batch_size: int) -> tuple[Any, float]:
        """Training steps per sample at most, or "auto"; and the bound of the latter."""
        ratio = value_at(schedule.max_training_steps_per_env_step, *self._position)
        uses = value_at(schedule.sample_uses, *self._position)
        most = math.inf if uses is None else uses / (batch_size * self._training.ranks.size)
        most *= 1.0 - self._training.memory.held_out
        return (ratio, min(schedule.auto_ratio_bound, most)) if ratio == "auto" else (min(ratio, most), math.inf)


def refuse_two_discounts(of_memory: float | None, of_agent: float | None) -> None:
    """Raise ConfigError where both have one, and not the same: the memory sums rewards up, the agent adds values."""
    if None not in (of_memory, of_agent) and of_memory != of_agent:
        raise ConfigError(f"gamma is {of_memory} in the memory and {of_agent} in the agent: give both the same")
