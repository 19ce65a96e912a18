"""The condition of a worker: all figures, each with its type, its unit and an explanation.

Each control loop counts into its own `Condition`; `of_worker` merges those of a worker's lanes, the
link adds its figures, and a `Beat` carries the result to the trainer. The fields determine how
lanes are merged, what the trainer sums up, what the page and Prometheus show, and the tables in
docs/metrics.md. A new figure therefore needs only a line here, code that counts it, and an
increased `WIRE_VERSION`. Only `page.js` lists by hand what it draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, get_type_hints

import msgspec

from tmrl_like.base.text import CONTROLS, one_line
from tmrl_like.types import Count

RETURNS_KEPT = 5
MAX_NOTE = 500

Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Word = Annotated[str, msgspec.Meta(max_length=20, pattern=rf"\A[^{CONTROLS}]*\Z")]
_Note = Annotated[str, msgspec.Meta(max_length=MAX_NOTE)]
_Returns = Annotated[tuple[Finite, ...], msgspec.Meta(max_length=RETURNS_KEPT)]


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _texts(values: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, values)))


@dataclass(frozen=True)
class Figure:
    """The description of a field, and how the values of a worker's lanes are merged.

    Attributes:
        meaning: explanation of the field.
        unit: its unit, if it has one.
        grows: whether it counts since the worker started; otherwise it is a current value.
        is_summed: whether the trainer's metrics contain its sum, over all workers if it grows, else
            over those that are alive.
        of_lanes: merges the values of the lanes, in their order; by default the first lane's value
            is used.
    """

    meaning: str
    unit: str = ""
    grows: bool = False
    is_summed: bool = False
    of_lanes: Callable[[Sequence[Any]], Any] = _first

    def metric_of(self, field: str) -> str:
        """Return the name of the field in metrics."""
        return f"{field}_total" if self.grows else field


TEST = "test"  # value of `Condition.driver`
_total = partial(Figure, grows=True, is_summed=True, of_lanes=sum)


class Condition(msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True):
    """The condition of a worker or of one of its lanes. Texts are converted to one line and cut
    after `MAX_NOTE` characters.
    """

    policy_version: Annotated[Count, Figure("version of the policy that drives", of_lanes=min)] = 0
    policy_age_s: Annotated[Finite, Figure("time since its policy arrived", "s", of_lanes=max)] = (
        0.0
    )
    env_steps: Annotated[Count, Figure("environment steps", "steps", grows=True, of_lanes=sum)] = 0
    overruns: Annotated[Count, _total("time-steps that missed their deadline", "steps")] = 0
    safe_steps: Annotated[Count, _total("steps that the safe action drove", "steps")] = 0
    env_faults: Annotated[
        Count, _total("how often the environment raised, hung or could not be made again")
    ] = 0
    env_rebuilds: Annotated[Count, _total("how often the environment was rebuilt")] = 0
    lost_samples: Annotated[
        Count,
        Figure(
            "samples dropped because too many waited for the trainer, or for lack of room",
            "samples",
            grows=True,
            is_summed=True,
        ),
    ] = 0
    unacknowledged_samples: Annotated[
        Count, Figure("samples kept until the trainer has stored them", "samples", is_summed=True)
    ] = 0
    action_delay_s: Annotated[
        Finite, Figure("time from the newest observation to its action", "s", of_lanes=max)
    ] = 0.0
    time_step_s: Annotated[Finite, Figure("nominal time-step; 0: not in real time", "s")] = 0.0
    returns: Annotated[_Returns, Figure("returns of the last episodes")] = ()
    driver: Annotated[
        _Word,
        Figure(
            "who drives: policy, test (a policy kept to its end), expert, safe (the safe action), "
            "human or program"
        ),
    ] = ""
    expert: Annotated[bool, Figure("1: it ignores policies")] = False
    awaits: Annotated[bool, Figure("1: it is in lockstep with training")] = False
    alarm: Annotated[
        _Note, Figure("message for the worker's user; 1: there is one", of_lanes=_texts)
    ] = ""
    ended: Annotated[_Note, Figure("why it no longer drives; 1: it has ended")] = ""
    sensor_age_s: Annotated[
        Finite, Figure("age of the value of the slowest sensor", "s", of_lanes=max)
    ] = 0.0

    @property
    def keeps_policy(self) -> bool:
        """Whether newly received policies are not used for driving now."""
        return self.expert or self.driver == TEST

    def __post_init__(self) -> None:
        self.alarm, self.ended = one_line(self.alarm, MAX_NOTE), one_line(self.ended, MAX_NOTE)


FIGURES: dict[str, Figure] = {
    field: next(note for note in hint.__metadata__ if isinstance(note, Figure))
    for field, hint in get_type_hints(Condition, include_extras=True).items()
}
"""Maps each field of a `Condition` to its `Figure`."""


def of_worker(lanes: Sequence[Condition]) -> Condition:
    """Merge the conditions of a worker's lanes into one."""
    return Condition(
        *(f.of_lanes([getattr(lane, field) for lane in lanes]) for field, f in FIGURES.items())
    )


def with_alarms(condition: Condition, *alarms: str, **known: Any) -> Condition:
    """Return a copy with additional alarms, and with the figures in `known` replaced."""
    return msgspec.structs.replace(condition, alarm=_texts((*alarms, condition.alarm)), **known)
