"""Code named in an experiment: `class_path` (an import path) with `init_args` becomes a factory or
an object.

    agent:
      class_path: tmrl_like.agents.SACAgent
      init_args: {lr_actor: 1e-3}

What a `class_path` inside `init_args` becomes follows from the parameter's annotation: an object
where it is a class, the class itself (a `partial` with its `init_args`) where it is a Callable, a
type, or anything at all. Keys with values become a dataclass where the annotation is one.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import functools
import operator
import os
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tmrl_like.base.factories import MISSING, signature_of, taken_apart
from tmrl_like.base.importing import import_object
from tmrl_like.base.text import name_of, one_line, suggestion
from tmrl_like.config.document import Document, Keys, dotted
from tmrl_like.errors import ConfigError

_Page = TypeVar("_Page")
_PATH, _ARGUMENTS = "class_path", "init_args"
_WRITTEN = (Any, object, type, dict, list, tuple, str, int, float, bool, type(None), MISSING)


def resolve_component(
    document: Document, keys: Keys, supplied: tuple[str, ...] = ()
) -> Callable[..., Any]:
    """Import what is named at `keys`: a `partial` of it with the arguments that the file gives, or
    the code itself.

    The arguments are checked; the file must not give those that are `supplied`.

    Raises:
        ConfigError: not importable, an unknown or missing argument, a value of the wrong type. The
            message names file, line and key.
    """
    if keys not in document.components:
        component = _resolve(
            document, keys, functools.reduce(operator.getitem, keys, document.data), supplied
        )
        _refuse_missing(document, keys, component, supplied)
        document.components[keys] = component
    return document.components[keys]


def import_component(document: Document, keys: Keys, value: Any) -> Callable[..., Any]:
    """Import what `value`, which is at `keys`, names; raises ConfigError where that is nothing that
    can be called.
    """
    if isinstance(value, str):
        value = {_PATH: value}
    if not is_component(value) or not isinstance(value[_PATH], str):
        raise document.error(
            keys, f": expected an import path, or class_path with init_args, got {value!r:.80}"
        )
    for key in value:
        if key not in (_PATH, _ARGUMENTS):
            raise document.error(
                (*keys, key), f": there is no such key; {suggestion(key, (_PATH, _ARGUMENTS))}"
            )
    try:
        target = import_object(value[_PATH])
    except ConfigError as error:
        raise document.error((*keys, _PATH), f": {error}") from None
    if not callable(target):
        raise document.error(
            (*keys, _PATH), f": {value[_PATH]} is a {type(target).__name__}, no class or function"
        )
    return target  # type: ignore[no-any-return]


def arguments_written(document: Document, keys: Keys, value: Any) -> dict[Any, Any]:
    """The arguments of the code that `value`, at `keys`, names; raises ConfigError unless they are
    keys with values.
    """
    arguments = (value.get(_ARGUMENTS) if isinstance(value, dict) else None) or {}
    if not isinstance(arguments, dict):
        raise document.error(
            (*keys, _ARGUMENTS), f": expected keys with values, got {arguments!r:.80}"
        )
    return arguments


def check_value(document: Document, keys: Keys, annotation: Any, value: Any) -> Any:
    """Return `value` as the type that `annotation` names; raises ConfigError where it is not
    one.
    """
    if annotation in (Any, MISSING):
        return value
    # numbers may be written as text
    for strict in (True, False) if isinstance(value, str) else (True,):
        for kind in _kinds(annotation):
            if isinstance(value, str | os.PathLike) and _is_path(kind):
                return Path(value)
            with contextlib.suppress(msgspec.ValidationError):
                try:
                    converted = msgspec.convert(value, kind, strict=strict)
                except TypeError:  # a type that msgspec does not know
                    if isinstance(kind, type):  # a Protocol, which no value of a file is
                        continue
                    return value
                return value if converted == value else converted
    got = "none" if value is None else f"{value!r:.80}"
    raise document.error(keys, f": expected {type_name(annotation)}, got {got}")


def make_page(document: Document, keys: Keys, page: Callable[..., _Page], values: Any) -> _Page:
    """Make a dataclass of options from keys with values.

    Raises:
        ConfigError: a key that is not there, or a value that cannot be; the message names file,
            line and key.
    """
    if not isinstance(values, dict):
        raise document.error(keys, f": expected keys with values, got {values!r:.80}")
    arguments = _check_arguments(document, keys, page, values, ())
    _refuse_missing(document, keys, functools.partial(page, **arguments))
    try:
        return page(**arguments)
    except ConfigError as error:  # it begins with the name of a field, if it is about one
        field = str(error).partition(" ")[0].split(".")
        if field[0] not in signature_of(page).parameters:
            raise document.error(keys, f": {error}") from None
        raise ConfigError(
            f"{document.where((*keys, *field))}: {dotted((*keys, ''))}{error}"
        ) from None


def make_object(document: Document, keys: Keys, component: Callable[..., Any]) -> Any:
    """An object of the class that is named at `keys`; raises ConfigError where that does not take
    its arguments.
    """
    _refuse_missing(document, keys, component)
    try:
        return component()
    except ConfigError as error:
        raise document.error(keys, f": {error}") from None
    except (TypeError, ValueError) as error:
        raise document.error(
            keys, f": {name_of(taken_apart(component)[0])}: {one_line(str(error))}"
        ) from None


def type_name(annotation: Any) -> str:
    """A type as users write it: "int", "int or none", "one of zmq, tlspyo"."""
    if annotation is type(None):
        return "none"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " * (len(arguments) > 1) + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(type_name, arguments)))
    if origin in (list, tuple, collections.abc.Sequence):
        inner = [type_name(a) for a in arguments if a is not Ellipsis]
        return (
            f"a list of {inner[0] if len(set(inner)) == 1 else ', '.join(inner)}"
            if inner
            else "a list"
        )
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


def is_component(value: Any) -> bool:
    """Whether a value of the file names code."""
    return isinstance(value, dict) and _PATH in value


def _resolve(
    document: Document, keys: Keys, value: Any, supplied: tuple[str, ...] = ()
) -> Callable[..., Any]:
    target = import_component(document, keys, value)
    written = arguments_written(document, keys, value)
    arguments = _check_arguments(document, (*keys, _ARGUMENTS), target, written, supplied)
    return functools.partial(target, **arguments) if arguments else target


def _check_arguments(
    document: Document,
    keys: Keys,
    target: Callable[..., Any],
    arguments: dict[Any, Any],
    supplied: tuple[str, ...],
) -> dict[str, Any]:
    signature = signature_of(target)
    checked = {}
    for name, value in arguments.items():
        if name in supplied:
            raise document.error(
                (*keys, name), ": is supplied when the object is made; leave it out here"
            )
        if name not in signature.parameters and not signature.open_ended:
            known = [n for n in signature.parameters if n not in supplied]
            is_page = dataclasses.is_dataclass(target)
            problem = (
                "there is no such key" if is_page else f"{name_of(target)} has no such argument"
            )
            raise document.error((*keys, name), f": {problem}; {suggestion(name, known)}")
        parameter = signature.parameters.get(name)
        annotation: Any = Any
        if parameter is not None and not (value is None and parameter.default is None):
            annotation = parameter.annotation
        checked[name] = _argument(document, (*keys, name), annotation, value)
    return checked


def _argument(document: Document, keys: Keys, annotation: Any, value: Any) -> Any:
    is_code = is_component(value) or (isinstance(value, str) and _names_code(annotation, value))
    if is_code:
        return _give(document, keys, annotation, _resolve(document, keys, value))
    pages = [
        kind
        for kind in _kinds(annotation)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind)
    ]
    if isinstance(value, dict) and pages:
        return make_page(document, keys, pages[0], value)
    inner = next(
        (
            a[-1 if isinstance(value, dict) else 0]
            for a in map(typing.get_args, _kinds(annotation))
            if a
        ),
        Any,
    )
    if isinstance(value, dict) and holds_component(value):
        return {k: _argument(document, (*keys, k), inner, v) for k, v in value.items()}
    if isinstance(value, list) and holds_component(value):
        return [_argument(document, (*keys, i), inner, v) for i, v in enumerate(value)]
    return check_value(document, keys, annotation, value)


def _give(document: Document, keys: Keys, annotation: Any, component: Callable[..., Any]) -> Any:
    """What code gives where `annotation` stands: an object, or the code itself."""
    kinds = _kinds(annotation)
    if isinstance(taken_apart(component)[0], type) and any(map(_is_object, kinds)):
        return make_object(document, keys, component)
    # it will be called without arguments
    if any(typing.get_args(kind)[:1] == ([],) for kind in kinds):
        _refuse_missing(document, keys, component)
    return component


def _refuse_missing(
    document: Document, keys: Keys, component: Callable[..., Any], supplied: tuple[str, ...] = ()
) -> None:
    target, given = taken_apart(component)
    if not isinstance(target, type):
        return
    for name, parameter in signature_of(target).parameters.items():
        if parameter.default is MISSING and name not in given and name not in supplied:
            missing = dotted((*keys, _ARGUMENTS, name))
            raise ConfigError(
                f"{document.where(keys)}: {missing} is missing: {name_of(target)} needs it"
            )


def holds_component(value: Any) -> bool:
    """Whether a value of the file names code, or holds one that does."""
    if isinstance(value, dict):
        return is_component(value) or any(map(holds_component, value.values()))
    return isinstance(value, list) and any(map(holds_component, value))


def _names_code(annotation: Any, text: str) -> bool:
    """Whether text is an import path: for a Callable or a type, and with a dot where only an object
    can be.
    """
    kinds = [kind for kind in _kinds(annotation) if kind is not type(None)]
    is_code = any(
        (typing.get_origin(kind) or kind) in (collections.abc.Callable, type) for kind in kinds
    )
    return is_code or ("." in text and all(map(_is_object, kinds)))


def _is_object(kind: Any) -> bool:
    """Whether a type is a class whose objects only code makes: no value of the file, as it stands,
    is one.
    """
    is_class = isinstance(kind, type) and typing.get_origin(kind) is None
    return is_class and kind not in _WRITTEN and not issubclass(kind, (enum.Enum, os.PathLike))


def _is_path(annotation: Any) -> bool:
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and issubclass(kind, os.PathLike)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union; of everything else itself."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)
