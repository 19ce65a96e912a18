"""Code named in an experiment: turns `class_path` (an import path) with `init_args` into a factory
or an object.

    agent:
      class_path: tmrl_like.agents.SACAgent
      init_args: {lr_actor: 1e-3}

For a `class_path` inside `init_args`, the parameter's annotation decides: an object is made if the
annotation is a class; the class itself (a `partial` with its `init_args`) is passed if it is a
Callable, a type, or Any. Keys with values become a dataclass if the annotation is one.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import functools
import inspect
import operator
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeGuard, TypeVar

import msgspec

from tmrl_like.base.factories import MISSING, Factory, signature_of, taken_apart
from tmrl_like.base.importing import import_object
from tmrl_like.base.text import name_of, one_line, suggestion
from tmrl_like.config.document import Document, Keys, Location, dotted
from tmrl_like.errors import ConfigError

_Page = TypeVar("_Page")
_PATH, _ARGUMENTS = "class_path", "init_args"
_PLAIN = frozenset((str, int, float, bool, type(None)))
_WRITTEN = (Any, object, type, dict, list, tuple, MISSING, *_PLAIN)


def resolve_component(document: Document, keys: Keys, supplied: tuple[str, ...] = ()) -> Factory:
    """Import the code named at `keys`, and return a `partial` of it with the arguments that the
    file gives, or the code itself if there are none.

    The arguments are checked. The file must not give those that are `supplied` later.

    Raises:
        ConfigError: not importable, an unknown or missing argument, or a value of the wrong type.
            The message names file, line and key.
    """
    if keys not in document.components:
        location = Location(document, keys)
        component = _resolve(
            location, functools.reduce(operator.getitem, keys, document.data), supplied
        )
        _refuse_missing(location, component, supplied)
        document.components[keys] = component
    return document.components[keys]


def check_value(location: Location, annotation: Any, value: object) -> Any:
    """Return `value` as the type that `annotation` names. Raises ConfigError if it does not fit."""
    kinds = _kinds(annotation)
    if annotation in (Any, MISSING) or (isinstance(value, str) and str in kinds):
        return value
    for kind in kinds:
        if value is False and "off" in typing.get_args(kind):  # YAML reads off as false
            return "off"
        if isinstance(value, str | os.PathLike) and _is_path(kind):
            return Path(value)
        with contextlib.suppress(msgspec.ValidationError):
            try:  # numbers may be written as text
                converted = msgspec.convert(value, kind, strict=not isinstance(value, str))
            except TypeError:  # a type unknown to msgspec
                if isinstance(kind, type):  # a Protocol, which no value in a file can be
                    continue
                return value
            return value if converted == value else converted
    if str in kinds and location.keys in location.document.typed:  # 2026, on, `a: b`
        return location.document.typed[location.keys]
    got = "none" if value is None else f"{value!r:.80}"
    raise location.error(f"expected {type_name(annotation)}, got {got}")


def make_page(document: Document, keys: Keys, page: Callable[..., _Page], values: object) -> _Page:
    """Make a dataclass of options from keys with values.

    Raises:
        ConfigError: a key does not exist, or a value is wrong; the message names file, line and
            key.
    """
    location = Location(document, keys)
    if not isinstance(values, dict):
        raise location.error(f"expected keys with values, got {values!r:.80}")
    arguments = _check_arguments(location, page, values, ())
    _refuse_missing(location, functools.partial(page, **arguments))
    try:
        return page(**arguments)
    except ConfigError as error:  # begins with the name of a field, if it is about one
        field = str(error).partition(" ")[0].split(".")
        if field[0] not in signature_of(page).parameters:
            raise location.error(str(error)) from None
        raise ConfigError(
            f"{document.where((*keys, *field))}: {dotted((*keys, ''))}{error}"
        ) from None


def make_object(location: Location, component: Factory) -> Any:
    """Make an object of the class that is named at a location. Raises ConfigError if the class
    rejects its arguments.
    """
    _refuse_missing(location, component)
    try:
        return component()
    except ConfigError as error:
        raise location.error(str(error)) from None
    except (TypeError, ValueError) as error:
        name = name_of(taken_apart(component)[0])
        raise location.error(f"{name}: {one_line(str(error))}") from None


def type_name(annotation: Any) -> str:
    """Return a type as users write it: "int", "int or none", "one of zmq, tlspyo"."""
    if annotation is type(None):
        return "none"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " * (len(arguments) > 1) + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(type_name, arguments)))
    if origin in (list, tuple, collections.abc.Sequence):
        inner = [type_name(a) for a in arguments if a is not Ellipsis]
        if len(set(inner)) == 1:
            del inner[1:]
        return f"a list of {', '.join(inner)}" if inner else "a list"
    if origin in (dict, collections.abc.Mapping) or dataclasses.is_dataclass(annotation):
        return "keys with values"
    if origin is collections.abc.Callable:
        return "an import path"
    named = {
        Any: "any value",
        Path: "text",
        str: "text",
        bool: "true or false",
        int: "a whole number",
        float: "a number",
    }
    return named.get(annotation, getattr(annotation, "__name__", str(annotation)))


def is_component(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether a value of the file names code."""
    return isinstance(value, dict) and _PATH in value


def _resolve(location: Location, value: Any, supplied: tuple[str, ...] = ()) -> Factory:
    if isinstance(value, str):
        value = {_PATH: value}
    target = _imported(location, value)
    location /= _ARGUMENTS
    written = value.get(_ARGUMENTS) or {}
    if not isinstance(written, dict):
        raise location.error(f"expected keys with values, got {written!r:.80}")
    arguments = _check_arguments(location, target, written, supplied)
    return functools.partial(target, **arguments) if arguments else target


def _imported(location: Location, value: object) -> Factory:
    """Import what `value` names. Raises ConfigError if that is not callable."""
    if not is_component(value) or not isinstance(value[_PATH], str):
        raise location.error(
            f"expected an import path, or class_path with init_args, got {value!r:.80}"
        )
    for key in value:
        if key not in (_PATH, _ARGUMENTS):
            known = suggestion(key, (_PATH, _ARGUMENTS))
            raise (location / key).error(f"there is no such key; {known}")
    location /= _PATH
    try:
        target = import_object(value[_PATH])
    except ConfigError as error:
        raise location.error(str(error)) from None
    if not callable(target):
        raise location.error(f"{value[_PATH]} is a {type(target).__name__}, no class or function")
    return target  # type: ignore[no-any-return]


def _check_arguments(
    location: Location,
    target: Factory,
    arguments: dict[Any, Any],
    supplied: tuple[str, ...],
) -> dict[str, Any]:
    parameters, is_open = signature_of(target).parameters, signature_of(target).open_ended
    is_page = dataclasses.is_dataclass(target)
    checked = {}
    for name, value in arguments.items():
        at = location / name
        if name in supplied:
            raise at.error("is supplied when the object is made; leave it out here")
        if name not in parameters and not is_open:
            problem = (
                "there is no such key" if is_page else f"{name_of(target)} has no such argument"
            )
            known = [n for n in parameters if n not in supplied]
            raise at.error(f"{problem}; {suggestion(name, known)}")
        parameter = parameters.get(name)
        if parameter is None:
            checked[name] = _argument(at, Any, value)
        elif parameter.default is None and (value is None or (is_page and value == "none")):
            checked[name] = None  # pages describe and print it as none
        else:
            checked[name] = _argument(at, parameter.annotation, value)
    return checked


def _argument(location: Location, annotation: Any, value: Any) -> Any:
    kinds = _kinds(annotation)
    if is_component(value) and _PLAIN.issuperset(kinds):
        raise location.error(f"expected {type_name(annotation)}, got {value!r:.80}")
    if is_component(value) or (isinstance(value, str) and _names_code(annotation, value)):
        return _give(location, annotation, _resolve(location, value))
    if isinstance(value, dict):
        for kind in kinds:
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                return make_page(location.document, location.keys, kind, value)
    if not holds_component(value):
        return check_value(location, annotation, value)
    arguments = next(filter(None, map(typing.get_args, kinds)), (Any,))  # of `list[...]`
    if isinstance(value, dict):
        return {key: _argument(location / key, arguments[-1], v) for key, v in value.items()}
    return [_argument(location / i, arguments[0], v) for i, v in enumerate(value)]


def _give(location: Location, annotation: Any, component: Factory) -> Any:
    """Return what code becomes for an `annotation`: an object of it, or the code itself."""
    kinds = _kinds(annotation)
    if isinstance(taken_apart(component)[0], type) and any(map(_is_object, kinds)):
        return make_object(location, component)
    # `Callable[[], ...]` is called without arguments
    if any(typing.get_args(kind)[:1] == ([],) for kind in kinds):
        _refuse_missing(location, component)
    return component


def _refuse_missing(location: Location, component: Factory, supplied: tuple[str, ...] = ()) -> None:
    target, given = taken_apart(component)
    if not isinstance(target, type):
        return
    for name, parameter in signature_of(target).parameters.items():
        is_left_out = parameter.default is MISSING and name not in {*given, *supplied}
        # what only its base needs, a class may supply itself
        if is_left_out and name in inspect.signature(target).parameters:
            missing = dotted((*location.keys, _ARGUMENTS, name))
            raise ConfigError(
                f"{location.document.where(location.keys)}: {missing} is missing: "
                f"{name_of(target)} needs it"
            )


def holds_component(value: object) -> bool:
    """Whether a value of the file names code, or contains a value that does."""
    if isinstance(value, dict):
        return is_component(value) or any(map(holds_component, value.values()))
    return isinstance(value, list) and any(map(holds_component, value))


def _names_code(annotation: object, text: str) -> bool:
    """Whether text is an import path: always for a Callable or a type; if it has a dot, also for an
    annotation that only objects can match.
    """
    kinds = [kind for kind in _kinds(annotation) if kind is not type(None)]
    is_code = any(
        (typing.get_origin(kind) or kind) in (collections.abc.Callable, type) for kind in kinds
    )
    return is_code or ("." in text and all(map(_is_object, kinds)))


def _is_object(kind: Any) -> bool:
    """Whether a type is a class whose objects only code can make, not plain values in a file."""
    is_class = isinstance(kind, type) and typing.get_origin(kind) is None
    return is_class and kind not in _WRITTEN and not issubclass(kind, (enum.Enum, os.PathLike))


def _is_path(annotation: object) -> bool:
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def _kinds(annotation: object) -> tuple[Any, ...]:
    """Return the alternatives of a union, or the annotation itself if it is none."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)
