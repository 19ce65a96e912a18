"""Factories (classes, functions and partials of them): which arguments they take, and which of them
can be derived from other factories.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from tmrl_like.errors import ConfigError, expect

Factory: TypeAlias = Callable[..., Any]
"""A class, a function or a `partial` of one, called later with the arguments that are still
missing.
"""


MISSING: Any = inspect.Parameter.empty
_FOR_MEMORY = ("act_buf_len", "reset_act_buf", "time_step_duration", "inputs")
_FOR_COMPRESSOR = ("act_buf_len", "reset_act_buf", "frame_stack")


def said_to_memory(
    arguments: Mapping[str, Any], stack: tuple[int, str] | None = None
) -> dict[str, Any]:
    """Return those of an environment's arguments that a memory takes under the same names.

    For use in the environment's `memory_arguments`. `stack` is the number of the item of an
    observation that is a stack of frames, and the name of the argument that counts these.
    """
    said = {name: arguments[name] for name in _FOR_MEMORY if name in arguments}
    if stack is not None:
        item, frames = stack[0], arguments[stack[1]]
        said["frame_stack"] = {item: frames} if frames > 1 else 0
    return said


def said_by_rtgym(config: Any) -> dict[str, Any]:
    """Return the same from rtgym's configuration dictionary, in which defaults are left out."""
    if not isinstance(config, dict) or "interface" not in config:
        return {}
    said = {"act_buf_len": 1, "reset_act_buf": True} | said_to_memory(config)
    return said if config.get("act_in_obs", True) else said | {"act_buf_len": 0}


class Elsewhere:
    """Placeholder for an environment that is not installed on this machine, and for all that a
    memory must know about it.
    """

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return placeholders: these arguments must be given to the memory itself."""
        return dict.fromkeys(_FOR_COMPRESSOR, Elsewhere)


@dataclass(frozen=True)
class Signature:
    """The parameters of a class or function; `open_ended`: it also takes unknown keywords."""

    parameters: dict[str, inspect.Parameter]
    open_ended: bool


def signature_of(target: Factory) -> Signature:
    """Return what `target` takes by keyword.

    The `**kwargs` of a class stand for the parameters of its base class and of its options page: a
    dataclass (see `base.options`) that the class names in its attribute `page`.
    """
    parameters: dict[str, inspect.Parameter] = {}
    is_open = True
    for function in _functions(target):
        try:
            own = inspect.signature(function)
        except (TypeError, ValueError):  # built-ins without a signature
            return Signature(parameters, True)
        hints = _hints(target if dataclasses.is_dataclass(target) else function)
        for name, p in own.parameters.items():
            if name != "self" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                parameters.setdefault(name, p.replace(annotation=hints.get(name, p.annotation)))
        is_open = any(p.kind is p.VAR_KEYWORD for p in own.parameters.values())
        if not is_open:
            break
    page = getattr(target, "page", None)
    if isinstance(target, type) and page is not None:
        for name, parameter in signature_of(page).parameters.items():
            parameters.setdefault(name, parameter)
        is_open = False
    return Signature(parameters, is_open)


def _functions(target: Factory) -> Iterator[Factory]:
    """Yield the functions that receive a call's keywords: the constructors of a class and its
    bases, or the function itself.
    """
    if not isinstance(target, type):
        yield target
        return
    for cls in target.__mro__:
        if "__init__" in vars(cls) and cls is not object:
            yield vars(cls)["__init__"]
    if target.__init__ is object.__init__:  # type: ignore[misc]
        yield target


_evaluated = functools.lru_cache(512)(typing.get_type_hints)  # slow: it compiles each annotation


def _hints(target: Factory) -> dict[str, Any]:
    try:
        return _evaluated(target)
    except Exception:
        return {}  # names that exist only for type checkers; values are then not checked


def taken_apart(factory: Factory) -> tuple[Factory, dict[str, Any]]:
    """Return what a factory calls, and the arguments that it already has for it, by name."""
    if not isinstance(factory, functools.partial):
        return factory, {}
    return factory.func, dict(
        zip(signature_of(factory.func).parameters, factory.args, strict=False)
    ) | factory.keywords


def argument_of(factory: Factory, name: str) -> Any:
    """Return the argument that a factory calls with: the given one, else the default, else
    `MISSING`.
    """
    target, given = taken_apart(factory)
    parameter = signature_of(target).parameters.get(name)
    return given.get(name, MISSING if parameter is None else parameter.default)


def completed(factory: Factory, **known: Any) -> Factory:
    """Return the factory with those arguments of `known` that it takes and does not have yet."""
    target, given = taken_apart(factory)
    taken = signature_of(target).parameters
    new = {
        name: value
        for name, value in known.items()
        if name in taken and name not in given and value is not MISSING
    }
    return functools.partial(factory, **new) if new else factory


def replaced(factory: Factory, **arguments: Any) -> Factory:
    """Return the factory with these arguments, in place of those that it has by these names."""
    target, given = taken_apart(factory)
    return functools.partial(target, **given | arguments) if arguments else factory


def instance_or_function(given: Factory, **known: Any) -> Factory:
    """Return an instance of a class or of a `partial` of one, made with those arguments of `known`
    that it takes; return a function as it is.
    """
    return completed(given, **known)() if isinstance(taken_apart(given)[0], type) else given


def known_from_env(env_cls: Any) -> dict[str, Any]:
    """Return what a memory must know about an environment, by the names of the memory's arguments.

    The environment's class provides it in a static method `memory_arguments`, which is called with
    the factory's arguments for the class, including defaults. For a class without this method the
    result is empty.

    Raises:
        ConfigError: this method needs an argument that is not given.
    """
    if not callable(env_cls):  # a pair of spaces
        return {}
    target: Any
    target, given = taken_apart(env_cls)
    if not hasattr(target, "memory_arguments"):
        return {}
    parameters = signature_of(target).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not MISSING}
    try:
        known: dict[str, Any] = target.memory_arguments(defaults | given)
    except KeyError as error:  # missing, or its base gets it from the class itself
        raise ConfigError(
            f"{target.__name__}.memory_arguments needs the argument {error.args[0]}: give it, or "
            "override this method"
        ) from None
    return known


def fitted(memory_cls: Factory, env_cls: Any, agent_cls: Factory | None = None) -> Any:
    """Return a memory's factory, completed with what the environment and the agent provide.

    These are the arguments that `known_from_env` finds, and the agent's `gamma`; arguments already
    given stay. If the memory makes another memory from its argument `memory`, that one is completed
    as well. A `sample_preprocessor` with a method `with_inputs` is replaced by the result of this
    method for the environment's `inputs`. Call this before `compressor_of(memory_cls)`.

    Raises:
        ConfigError: an argument contradicts the environment, or a required one is unknown because
            the environment is not installed here.
    """
    known = known_from_env(env_cls)
    if agent_cls is not None:
        known["gamma"] = argument_of(agent_cls, "gamma")
    return _knowing(memory_cls, known)


def _knowing(memory_cls: Factory, known: dict[str, Any]) -> Factory:
    target, given = taken_apart(memory_cls)
    taken = signature_of(target).parameters
    for name, value in known.items():
        if value is Elsewhere and name in taken and name not in given:
            raise ConfigError(
                f"memory.{name} is missing: it is the environment's, which cannot be imported here"
            )
        is_same = name != "reset_act_buf" or value is Elsewhere or given.get(name, value) == value
        expect(
            is_same, f"memory.{name}", given.get(name), f"the environment's, {value}: leave it out"
        )
    told: dict[str, Any] = {}
    if given.get("memory") is not None:
        told["memory"] = _knowing(given["memory"], known)
    preprocessor: Any = given.get("sample_preprocessor")
    if hasattr(preprocessor, "with_inputs") and "inputs" in known:
        told["sample_preprocessor"] = preprocessor.with_inputs(known["inputs"])
    return replaced(completed(memory_cls, **known), **told)
