"""Import of objects by their import path."""

from __future__ import annotations

import importlib
from typing import Any

from tmrl_like.base.functional import place_of
from tmrl_like.base.text import name_of, one_line, suggestion
from tmrl_like.errors import ConfigError, TmrlLikeError


def import_object(path: str) -> Any:
    """Return the object with this import path ("package.module.Class").

    Raises:
        ConfigError: there is no such object, or its module cannot be imported.
    """
    names = path.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(f"expected an import path like module.Class, got {path!r}")
    found, depth = _import_longest(names)
    for name in names[depth:]:
        try:
            found = getattr(found, name)
        except AttributeError:
            public = [
                known
                for known in getattr(found, "__all__", None) or dir(found)
                if not known.startswith("_")
            ]
            raise ConfigError(
                f"{name_of(found)} has no {name}; {suggestion(name, public)}"
            ) from None
    return found


def _import_longest(names: list[str]) -> tuple[Any, int]:
    """Import as many of `names` as are modules; return the innermost module and their number."""
    for depth in range(len(names) - 1, 0, -1):
        module = ".".join(names[:depth])
        try:
            return importlib.import_module(module), depth
        except TmrlLikeError:
            raise
        except (Exception, SystemExit) as error:  # `sys.exit()` as a script's last line
            if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
                continue
            where = (
                f" ({error.filename}:{error.lineno})"
                if isinstance(error, SyntaxError)
                else place_of(error)
            )
            text = one_line(error.msg if isinstance(error, SyntaxError) else str(error))
            raise ConfigError(
                f"importing {module} failed: {type(error).__name__}: {text}{where}"
            ) from None
    raise ConfigError(
        f"there is no module {names[0]!r} (looked in the experiment's folder and where Python "
        "looks)"
    )
