"""Hyper-parameters that somebody changes while training goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from numbers import Real
from typing import Any

import msgspec

from tmrl_like.errors import ConfigError, expect
from tmrl_like.trainer.options import LIVE
from tmrl_like.trainer.watch import Listener

log = logging.getLogger("tmrl_like.trainer")

_MAY_BE_NONE = "trainer.sample_uses"


class Tuning(Listener):
    """The hyper-parameters of a training that may change, each by its name in an experiment: "agent.lr_actor".

    All ranks of a training change the same between the same two training steps.

    Attributes:
        given: the values that the script or the file gave, which made the training.
        wanted: the same with what was changed since.
    """

    def __init__(self, training: Any) -> None:
        """Read what may change of a `TrainingOffline`, and its value now."""
        self._training = training
        self._asked: deque[tuple[dict[str, Any], bool, Future[None]]] = deque()
        self._changed: set[str] = set()
        tunable = {"trainer": LIVE, "agent": training.agent.tunable, "memory": training.memory.tunable}
        names = [f"{part}.{name}" for part in tunable for name in tunable[part]]
        self.given = {name: self._now(name) for name in names}
        self.wanted = dict(self.given)

    def ask(self, values: Mapping[str, Any], given: bool = False) -> Future[None]:
        """See `TrainingOffline.tune`. `given`: the file that made the training says so, and a resumption will, too."""
        asked = {}
        for name, value in values.items():
            if name not in self.given:
                raise ConfigError(f"{name} cannot change while training; {', '.join(self.given)} can")
            is_none = value is None and name == _MAY_BE_NONE
            expect(is_none or isinstance(value, Real), name, value, "a number")
            asked[name] = None if is_none else int(value) if float(value).is_integer() else float(value)
        done: Future[None] = Future()
        self._asked.append((asked, given, done))
        return done

    def begin_round(self) -> None:
        """Change what rank 0 was asked to change."""
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        of_rank_0 = self._training.ranks.broadcast(msgspec.msgpack.encode([request for *request, _ in asked]))
        errors = [self._change(*request) for request in msgspec.msgpack.decode(of_rank_0)]
        for (*_, done), error in zip(asked, errors, strict=False):
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
        self.follow()

    def _change(self, values: dict[str, Any], given: bool) -> ConfigError | None:
        """Have other values from here on; an error: nothing has changed."""
        before = dict(self.wanted)
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
            self.given |= {name: self._now(name) for name in values}
        return None

    def follow(self) -> None:
        """Give the pace the limit that holds now."""
        training = self._training
        training.pacer.follow(self._limit(), training.total_updates, training.total_samples)

    def on_round(self, record: dict[str, Any]) -> None:
        """The values in force of what was changed."""
        record |= {name: self._now(name) for name in sorted(self._changed)}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: `given` and `wanted` of each name."""
        return {name: [given, self.wanted[name]] for name, given in self.given.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as another process left it; but where this one was given another value than that one, with that."""
        for name, (given, wanted) in state.items():
            if name not in self.given:
                continue
            if given == self.given[name]:
                self.wanted[name] = wanted
            elif wanted != self.given[name]:
                log.info("%s changes with this resumption: %s -> %s", name, wanted, self.given[name])
            if not given == self.wanted[name] == self.given[name]:
                try:
                    self._set({name: self.wanted[name]})
                except ConfigError as error:
                    log.warning("%s stays as the checkpoint has it: %s", name, error)
        self.follow()

    def _now(self, name: str) -> Any:
        part, _, attribute = name.partition(".")
        return getattr(self._training if part == "trainer" else vars(self._training)[part], attribute)

    def _set(self, values: dict[str, Any]) -> None:
        """Give schedule, agent and memory other values, or none of them; ConfigError: one of them cannot be."""
        training = self._training
        if "agent.gamma" in values and discount_of(training.memory) is not None:
            values = {"memory.gamma": values["agent.gamma"]} | values
        with ExitStack() as undo:
            change = {"trainer": training.change, "agent": training.agent.tune, "memory": training.memory.tune}
            for part in change:
                new = {name.removeprefix(f"{part}."): v for name, v in values.items() if name.startswith(f"{part}.")}
                if new:
                    before = {name: self._now(f"{part}.{name}") for name in new}
                    change[part](**new)
                    undo.callback(change[part], **before)
            refuse_two_discounts(discount_of(training.memory), discount_of(training.agent))
            training.pacer.check(self._limit())
            undo.pop_all()
        training.memory.nb_steps = training.steps

    def _limit(self) -> float:
        """Training steps per sample at most."""
        training = self._training
        limit: float = training.max_training_steps_per_env_step
        if training.sample_uses is not None:
            batch_size = training.memory.batch_size * training.ranks.size
            limit = min(limit, training.sample_uses / batch_size * (1.0 - training.memory.held_out))
        return limit


def discount_of(holder: object) -> float | None:
    """The `gamma` of an agent or a memory; None: it has none."""
    gamma: float | None = getattr(holder, "gamma", None)
    return gamma


def refuse_two_discounts(of_memory: float | None, of_agent: float | None) -> None:
    """Raise ConfigError where both have one, and not the same: the memory sums rewards up, the agent adds values."""
    if None not in (of_memory, of_agent) and of_memory != of_agent:
        raise ConfigError(f"gamma is {of_memory} in the memory and {of_agent} in the agent: give both the same")
