"""Small helpers for users' agents and scripts."""

from __future__ import annotations

import functools
import random
import sys
import traceback
import weakref
from collections.abc import Callable
from math import prod
from typing import Any, Generic, TypeVar

from tmrl_like.base.factories import fitted, signature_of
from tmrl_like.base.text import name_of

T = TypeVar("T")

__all__ = ["cached_property", "fitted", "partial", "prod"]


def partial(func: Callable[..., T], *args: Any, **kwargs: Any) -> functools.partial[T]:
    """Defer a call, like `functools.partial`, but raise immediately if a keyword is misspelt.

    Partials can be nested; missing keywords are supplied in the final call.

    Raises:
        TypeError: `func` has no parameter of this name; the message lists its parameters.
    """
    signature = signature_of(func)
    for name in kwargs:
        if name not in signature.parameters and not signature.open_ended:
            raise TypeError(
                f"{name_of(func)} has no argument {name!r}; it takes "
                f"{', '.join(signature.parameters)}"
            )
    return functools.partial(func, *args, **kwargs)


class cached_property(Generic[T]):  # noqa: N801 - the field's standard name
    """A property that is computed once per instance and left out of copies, state and checkpoints.

    `model_nograd = cached_property(lambda self: no_grad(copy_shared(self.model)))` gives each agent
    one parameter-sharing copy that `deepcopy` and `state_dict` do not see: the value is kept in a
    table of the property, not in the instance's `__dict__`, until the instance is deleted.
    """

    def __init__(self, init: Callable[[Any], T]) -> None:
        self._init = init
        self._values: dict[int, T] = {}
        self.__doc__ = init.__doc__

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        if instance is None:
            return self  # type: ignore[return-value]  # the property, as seen in its class
        key = id(instance)
        if key not in self._values:
            self.__set__(instance, self._init(instance))
        return self._values[key]

    def __set__(self, instance: Any, value: T) -> None:
        key = id(instance)
        if key not in self._values:
            weakref.finalize(instance, self._values.pop, key, None).atexit = False
        self._values[key] = value


def place_of(error: BaseException) -> str:
    """Return where an exception was raised as `" (file:line)"`, or an empty string if unknown."""
    places = [
        f"{frame.f_code.co_filename}:{line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    own = [place for place in places if not place.startswith("<frozen")]
    return f" ({own[-1]})" if own else ""


def seed_generators(seed: int | None) -> None:
    """Seed the generators of Python, numpy and, if it is loaded, torch; None: do nothing."""
    if seed is not None:
        import numpy as np

        random.seed(seed)
        np.random.seed(seed)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(seed)
