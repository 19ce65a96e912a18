"""Hyper-parameters that somebody changes while training goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import fields
from numbers import Real
from typing import Any

import msgspec

from tmrl_like.base.factories import MISSING, argument_of, signature_of, taken_apart
from tmrl_like.errors import ConfigError, expect
from tmrl_like.trainer.options import LIVE, Schedule

log = logging.getLogger("tmrl_like.trainer")

_USES = "trainer.sample_uses"


class Tuning:
    """The hyper-parameters of a training that may change, each by its name in an experiment: "agent.lr_actor".

    All ranks of a training change the same between the same two training steps.

    Attributes:
        given: what the script or the file says that made the training; None where it leaves one to the class.
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

    def ask(self, values: Mapping[str, Any], given: bool = False) -> Future[None]:
        """See `TrainingOffline.tune`. `given`: the file that made the training says so, and a resumption will, too."""
        asked = {}
        for name, value in values.items():
            if name not in self.given:
                raise ConfigError(f"{name} cannot change while training; {', '.join(self.given)} can")
            is_whole = name in self._whole
            fits = isinstance(value, Real) and (not is_whole or float(value).is_integer())
            expect(fits or (value is None and name == _USES), name, value, "a whole number" if is_whole else "a number")
            asked[name] = value.item() if hasattr(value, "item") else value  # numpy's numbers
        done: Future[None] = Future()
        self._asked.append((asked, given, done))
        return done

    def begin_round(self) -> None:
        """Change what rank 0 was asked to change."""
        ranks, asked = self._training.ranks, [self._asked.popleft() for _ in range(len(self._asked))]
        requests = [(values, given) for values, given, _ in asked]
        if ranks.size > 1:
            requests = msgspec.msgpack.decode(ranks.broadcast(msgspec.msgpack.encode(requests)))
        outcomes = [self._change(values, given) for values, given in requests]
        for (*_, done), error in zip(asked, outcomes, strict=False):
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        self.follow()

    def _change(self, values: dict[str, Any], given: bool) -> ConfigError | None:
        """Have other values from here on; an error: nothing has changed."""
        before = {name: self._now(name) if self.wanted[name] is None else self.wanted[name] for name in values}
        try:
            self._set(values)
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
        """Give the pace the limit that holds now."""
        training = self._training
        limit = self._limit(training, training.memory.batch_size)
        training.pacer.follow(limit, training.total_updates, training.total_samples)

    def metrics(self) -> dict[str, Any]:
        """The values in force of what was changed."""
        return {name: self._now(name) for name in sorted(self._changed)}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: `given` and `wanted` of each name."""
        return {name: [given, self.wanted[name]] for name, given in self.given.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on as another process left it; but where this one was given another value than that one, with that."""
        for name, (given, wanted) in state.items():
            if name not in self.given:
                continue
            if given == self.given[name]:
                self.wanted[name] = wanted
            elif wanted != self.given[name]:
                log.info("%s changes with this resumption: %s -> %s", name, wanted, self.given[name])
            value = self.wanted[name]
            if value is not None and not given == value == self.given[name]:
                try:
                    self._set({name: value})
                except ConfigError as error:
                    log.warning("%s stays as the checkpoint has it: %s", name, error)
        self.follow()

    def _now(self, name: str) -> Any:
        part, _, attribute = name.partition(".")
        return getattr(self._training if part == "trainer" else getattr(self._training, part), attribute)

    def _set(self, values: dict[str, Any]) -> None:
        """Give agent, memory and schedule other values, or none of them; ConfigError: one of them cannot be."""
        training = self._training
        parts: dict[str, dict[str, Any]] = {"agent": {}, "memory": {}, "trainer": {}}
        for name, value in values.items():
            part, _, attribute = name.partition(".")
            parts[part][attribute] = round(value) if name in self._whole else value
        gamma = getattr(training.memory, "gamma", None)
        if gamma is not None and "gamma" in parts["agent"]:
            parts["memory"].setdefault("gamma", parts["agent"]["gamma"])
        of_agent = parts["agent"].get("gamma", getattr(training.agent, "gamma", None))
        refuse_two_discounts(parts["memory"].get("gamma", gamma), of_agent)
        schedule = Schedule(**{f.name: getattr(training, f.name) for f in fields(Schedule)} | parts["trainer"])
        batch_size = parts["memory"].get("batch_size", training.memory.batch_size)
        training.pacer.check(self._limit(schedule, batch_size))
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

    def _limit(self, schedule: Schedule, batch_size: int) -> float:
        """Training steps per sample at most."""
        ratio, uses = schedule.max_training_steps_per_env_step, schedule.sample_uses
        if uses is None:
            return ratio
        training = self._training
        most: float = uses / (batch_size * training.ranks.size) * (1.0 - training.memory.held_out)
        return min(ratio, most)


def refuse_two_discounts(of_memory: float | None, of_agent: float | None) -> None:
    """Raise ConfigError where both have one, and not the same: the memory sums rewards up, the agent adds values."""
    if None not in (of_memory, of_agent) and of_memory != of_agent:
        raise ConfigError(f"gamma is {of_memory} in the memory and {of_agent} in the agent: give both the same")
