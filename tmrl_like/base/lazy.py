"""Names that a package has without importing their modules."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_from(package: str, home_of: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: each name is loaded from its module, `home_of` it, when first
    used.
    """

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name]), name)

    return load
