"""A policy as one file: a safetensors file whose metadata describe the actor, its spaces, and its
test returns.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np

from tmrl_like.base.factories import signature_of, taken_apart
from tmrl_like.base.text import one_line
from tmrl_like.errors import PolicyError
from tmrl_like.policies.weight_file import (
    Weights,
    read_card_text,
    read_weights,
    write_weights,
)
from tmrl_like.types import ObsPreprocessor
from tmrl_like.wire.spaces import SpaceSpec, spec_of

if TYPE_CHECKING:
    from tmrl_like.policies.actor import ActorModule  # which imports torch

FORMAT = 1

Arguments: TypeAlias = dict[str, Any]
"""The arguments of a call, by name."""

_T = TypeVar("_T")


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class or function by its import path, and the arguments of its call, as in an experiment's
    file.
    """

    class_path: str
    init_args: Arguments = {}


class PolicyCard(msgspec.Struct, frozen=True, kw_only=True, rename={"return_": "return"}):
    """The description of a policy in its file. Text in place of a part says why that part cannot be
    written down.

    Attributes:
        actor: the class or function that makes the actor, from the spaces and these arguments.
        obs_preprocessor: applied to observations before the actor sees them, or None.
        observation_space: observation space of the environment.
        action_space: action space of the environment.
        run: name of the run that trained the policy.
        version: the policy version, as the trainer numbered it.
        published_at_s: Unix time of publication.
        training_steps: number of training steps that led to the policy.
        return_: mean return of its test episodes, or None if there were none.
        episodes: number of its test episodes.
        std: standard deviation of their returns; 0 for fewer than two.
        worst: lowest of their returns, or None if there were none.
        format: version of the card's format.
    """

    actor: Code | str
    obs_preprocessor: Code | str | None
    observation_space: SpaceSpec | str
    action_space: SpaceSpec | str
    run: str = ""
    version: int = 0
    published_at_s: float = 0.0
    training_steps: int = 0
    return_: float | None = None
    episodes: int = 0
    std: float = 0.0
    worst: float | None = None
    format: int = FORMAT


class _Format(msgspec.Struct):
    format: int


def describe(
    actor: ActorModule, obs_preprocessor: ObsPreprocessor | None = None, run: str = ""
) -> PolicyCard:
    """Return the card of an actor, with the arguments that it was made with."""
    return PolicyCard(
        actor=_said(_code_of, type(actor), actor.made_with),
        obs_preprocessor=(
            None if obs_preprocessor is None else _said(_code_of_object, obs_preprocessor)
        ),
        observation_space=_said(spec_of, actor.observation_space),
        action_space=_said(spec_of, actor.action_space),
        run=run,
    )


def write_policy(path: Path, weights: Weights, card: PolicyCard) -> None:
    """Write weights with a card, atomically: a process that is killed leaves the whole old file or
    the whole new one. Raise OSError if the file cannot be written.
    """
    write_weights(path, weights, msgspec.json.encode(card).decode())


def read_card(path: Path) -> PolicyCard | None:
    """Return the card in a file, or None if the file holds weights alone.

    Raises:
        PolicyError: the file is no policy, or one of another format.
        OSError: the file cannot be read.
    """
    return _card(path, read_card_text(path))


def read_policy(path: Path) -> tuple[PolicyCard | None, Weights]:
    """Return the card in a file, as `read_card`, and its weights: both are of one file, even if
    another takes its name meanwhile.

    Raises:
        PolicyError: the file is no policy, of another format, damaged, or holds values that are not
            finite.
        OSError: the file cannot be read.
    """
    text, weights = read_weights(path)
    return _card(path, text), weights


def _card(path: Path, text: str) -> PolicyCard | None:
    if not text:
        return None
    try:
        found = msgspec.json.decode(text, type=_Format).format
        if found != FORMAT:
            raise PolicyError(
                f"{path} has the format {found}, this tmrl_like reads {FORMAT}: upgrade tmrl_like"
            )
        return msgspec.json.decode(text, type=PolicyCard)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PolicyError(
            f"{path} does not say what it is in a way that can be read: {error}"
        ) from None


def _said(call: Callable[..., _T], *arguments: object) -> _T | str:
    try:
        return call(*arguments)
    except PolicyError as error:
        return str(error)


def _code_of(target: Any, arguments: Arguments) -> Code:
    return Code(
        _import_path(target), {name: _plain(name, value) for name, value in arguments.items()}
    )


def _code_of_object(value: Any) -> Code:
    """Return the `Code` of a function, or of an object that its class and fields describe fully."""
    target, given = taken_apart(value)
    if not hasattr(target, "__qualname__"):
        target, given = type(value), {}
        if dataclasses.is_dataclass(value):
            given = {
                field.name: getattr(value, field.name)
                for field in dataclasses.fields(value)
                if field.init
            }
        elif signature_of(target).parameters:
            raise PolicyError(
                f"it is not known with which arguments {one_line(value, 80)} was made: use a "
                "function, a partial of one or a dataclass"
            )
    return _code_of(target, given)


def _import_path(target: Any) -> str:
    """Return the shortest import path of a class or function."""
    module, name = target.__module__ or "", target.__qualname__
    if inspect.ismethod(target):
        of = target.__self__
        if not inspect.isclass(of):
            raise PolicyError(
                f"{one_line(target, 80)} is an object's method: use a function, a partial of one "
                "or a dataclass"
            )
        module, name = of.__module__, f"{of.__qualname__}.{target.__name__}"
    if "<" in name:
        raise PolicyError(
            f"{one_line(target, 80)} has no import path: define it at the top of a module"
        )
    parts = module.split(".")
    prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    found = next((p for p in prefixes if getattr(sys.modules.get(p), name, None) is target), module)
    return f"{found}.{name}"


def _plain(name: str, value: object) -> object:
    """Convert an argument to JSON's types; code becomes its import path and arguments."""
    if isinstance(value, np.generic):
        value = value.item()
    if (
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    if isinstance(value, list | tuple):
        return [_plain(name, part) for part in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(name, part) for key, part in value.items()}
    # an object would be read back as its class
    if callable(value) and hasattr(taken_apart(value)[0], "__qualname__"):
        return msgspec.to_builtins(_code_of_object(value))
    raise PolicyError(f"its argument {name} is {one_line(value, 80)!r}, which JSON cannot express")
