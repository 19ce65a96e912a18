"""Changes of hyper-parameters while training goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from numbers import Real
from typing import Any, NamedTuple, TypeAlias

import msgspec

from tmrl_like.base.tunable import Tunable
from tmrl_like.errors import ConfigError, expect
from tmrl_like.metrics.reading import Record
from tmrl_like.trainer.ranks import Alone
from tmrl_like.trainer.watch import Listener

log = logging.getLogger("tmrl_like.trainer")

_MAY_BE_NONE = "trainer.sample_uses"
_LARGEST_WHOLE = 2**53  # larger values are sent to other ranks as floats: msgpack has 64 bits

Values: TypeAlias = Mapping[str, float | None]
"""Values by their names in an experiment, such as "agent.lr_actor"."""


class TunablePart(NamedTuple):
    """A part of a training: the names of its values that may change, the object that has them, and
    the function that changes them or raises ConfigError.
    """

    names: tuple[str, ...]
    holder: object
    tune: Callable[..., None]


class Tuning(Listener):
    """The hyper-parameters of a training that may change. All ranks change them alike, between the
    same two steps.

    Attributes:
        given: the values in the script or the file.
    """

    def __init__(self, parts: Mapping[str, TunablePart], check: Callable[[], None]) -> None:
        """Read which values may change, and their current values.

        Args:
            parts: of the training, by their names in an experiment.
            check: raises ConfigError if the values of several parts contradict each other.
        """
        self._parts = parts
        self._check = check
        self._asked: deque[tuple[dict[str, float | None], Future[None]]] = deque()
        self._changed: set[str] = set()
        self.given = {
            f"{part}.{name}": getattr(holder, name)
            for part, (names, holder, _) in parts.items()
            for name in names
        }

    def __getstate__(self) -> dict[str, Any]:
        """Pickle all but the requests, on which threads of this process wait."""
        return vars(self) | {"_asked": deque()}

    def ask(self, values: Values) -> Future[None]:
        """Request changes, see `TrainingOffline.tune`."""
        asked = {}
        for name, value in values.items():
            if name not in self.given:
                raise ConfigError(
                    f"{name} cannot change while training; {', '.join(self.given)} can"
                )
            is_none = value is None and name == _MAY_BE_NONE
            expect(is_none or isinstance(value, Real), name, value, "a number")
            if value is not None:
                is_whole = abs(value) < _LARGEST_WHOLE and float(value).is_integer()
                value = int(value) if is_whole else float(value)
            asked[name] = value
        done: Future[None] = Future()
        self._asked.append((asked, done))
        return done

    def begin_round(self, ranks: Alone) -> None:
        """Apply the changes that were requested on rank 0, on all ranks, without those whose future
        was cancelled. Refuse requests of other ranks.
        """
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        asked = [one for one in asked if one[-1].set_running_or_notify_cancel()]
        of_rank_0 = ranks.broadcast(msgspec.msgpack.encode([values for values, _ in asked]))
        errors = [self._change(values) for values in msgspec.msgpack.decode(of_rank_0)]
        if ranks.rank:
            errors = [ConfigError("of several trainers, only rank 0 changes values") for _ in asked]
        for (_, done), error in zip(asked, errors, strict=True):
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

    def _change(self, values: Values) -> ConfigError | None:
        """Apply new values; return an error if that fails, in which case nothing has changed."""
        before = {name: self._now(name) for name in values}
        try:
            self._set(values)
        except ConfigError as error:
            return error
        for name, value in values.items():
            if value != before[name]:
                log.info("%s changes: %s -> %s", name, before[name], value)
                self._changed.add(name)
        return None

    def on_round(self, record: Record) -> None:
        """Add the current values of everything that has been changed."""
        record |= {name: self._now(name) for name in sorted(self._changed)}

    def state_dict(self) -> dict[str, tuple[float | None, float | None]]:
        """Return the given and the current value of each name, for a checkpoint."""
        return {name: (given, self._now(name)) for name, given in self.given.items()}

    def load_state_dict(self, state: Mapping[str, tuple[float | None, float | None]]) -> None:
        """Set what script or file have changed since the checkpoint, and all else to its values."""
        for name, given in self.given.items():
            given_before, value = state.get(name, (given, given))
            wanted = value if given == given_before else given
            now = self._now(name)
            try:
                if wanted != now:
                    self._set({name: wanted})
            except ConfigError as error:
                log.warning("%s stays %s: %s", name, now, error)
                continue
            if wanted != value:
                log.info("%s changes with this resumption: %s -> %s", name, value, wanted)
            if wanted != given:
                self._changed.add(name)

    def _now(self, name: str) -> float | None:
        part, _, attribute = name.partition(".")
        value: float | None = getattr(self._parts[part].holder, attribute)
        return value

    def _set(self, values: Values) -> None:
        """Apply values to all parts, or to none of them. Raises ConfigError if one is rejected."""
        if "agent.gamma" in values and "memory.gamma" in self.given:
            values = {"memory.gamma": values["agent.gamma"], **values}
        undo = []
        try:
            for part, (names, holder, tune) in self._parts.items():
                wanted = {
                    name: values[f"{part}.{name}"] for name in names if f"{part}.{name}" in values
                }
                if wanted:
                    before = {name: getattr(holder, name) for name in wanted}
                    tune(**wanted)
                    undo.append((tune, before))
            self._check()
        except ConfigError:
            for tune, before in undo:
                tune(**before)
            raise


def refuse_two_discounts(memory: Tunable, agent: Tunable) -> None:
    """Raise ConfigError if both have a discount and these differ: the memory uses its discount to
    sum rewards, the agent to add values.
    """
    if None not in (memory.gamma, agent.gamma) and memory.gamma != agent.gamma:
        raise ConfigError(
            f"gamma is {memory.gamma} in the memory and {agent.gamma} in the agent: give both the "
            "same"
        )
