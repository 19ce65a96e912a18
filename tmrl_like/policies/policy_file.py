"""A policy as one file: a safetensors file whose metadata say which actor it is, for which spaces,
and how good.
"""

from __future__ import annotations

import dataclasses
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
    refuse_not_finite,
    write_weights,
)
from tmrl_like.types import ObsPreprocessor
from tmrl_like.wire.spaces import SpaceSpec, spec_of

if TYPE_CHECKING:
    from tmrl_like.policies.actor import ActorModule  # which imports torch

FORMAT = 1

Arguments: TypeAlias = dict[str, Any]
"""What something is called with, by name."""

_T = TypeVar("_T")


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class or function by its import path, and what it is called with, as an experiment names
    them.
    """

    class_path: str
    init_args: Arguments = {}


class PolicyCard(msgspec.Struct, frozen=True, kw_only=True, rename={"return_": "return"}):
    """What a policy file says of its policy. Text in the place of a part says why that cannot be
    written down.

    Attributes:
        actor: what makes it, from the spaces and these arguments.
        obs_preprocessor: what observations go through before it; None: nothing.
        observation_space: of the environment.
        action_space: of the environment.
        run: name of the training's run.
        version: the trainer's number of the policy.
        published_at_s: Unix time.
        training_steps: that it was trained for.
        return_: mean of its test episodes; None: there was none.
        episodes: how many there were.
        std: standard deviation of their returns; 0 of less than two.
        worst: the lowest of their returns; None: there was none.
        format: of these fields.
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
    """The card of an actor, as it was made."""
    return PolicyCard(
        actor=_said(_code_of, type(actor), actor.made_with),
        obs_preprocessor=None if obs_preprocessor is None else code_of(obs_preprocessor),
        observation_space=_said(spec_of, actor.observation_space),
        action_space=_said(spec_of, actor.action_space),
        run=run,
    )


def code_of(value: object) -> Code | str:
    """What a function, a partial of one, or an object is made of; text says why that cannot be
    written down.
    """
    return _said(_code_of_object, value)


def write_policy(path: Path, weights: Weights, card: PolicyCard) -> None:
    """Write weights with a card: after a kill the file is the old one or the new one, whole.
    OSError: it cannot be.
    """
    write_weights(path, weights, msgspec.json.encode(card).decode())


def read_card(path: Path) -> PolicyCard | None:
    """The card in a file; None: the file holds weights alone.

    Raises:
        PolicyError: no policy, or one of another format.
        OSError: the file cannot be read.
    """
    return _card(path, read_card_text(path))


def read_policy(path: Path) -> tuple[PolicyCard | None, Weights]:
    """The card in a file, as `read_card`, and the weights in the same file, whatever happens to its
    name meanwhile.

    Raises:
        PolicyError: no policy, one of another format, damaged, or with values that are not finite.
        OSError: the file cannot be read.
    """
    text, weights = read_weights(path)
    try:
        refuse_not_finite(weights)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None
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
    """Of a function, or of an object whose class and fields say all of it."""
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
                f"with which arguments {one_line(value, 80)} was made is not known: a function, a "
                "partial of one or a dataclass says so"
            )
    return _code_of(target, given)


def _import_path(target: Any) -> str:
    """The shortest one."""
    module, name = target.__module__ or "", target.__qualname__
    if "<" in name:
        raise PolicyError(
            f"{one_line(target, 80)} has no import path: define it at the top of a module"
        )
    parts = module.split(".")
    prefixes = [".".join(parts[:depth]) for depth in range(1, len(parts))]
    found = next((p for p in prefixes if getattr(sys.modules.get(p), name, None) is target), module)
    return f"{found}.{name}"


def _plain(name: str, value: object) -> object:
    """An argument as JSON has it; code by its path."""
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
    if callable(value):
        return msgspec.to_builtins(_code_of_object(value))
    raise PolicyError(f"its argument {name} is {one_line(value, 80)!r}, which no text says")
