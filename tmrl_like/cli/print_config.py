"""`tmrl-like config`: prints an experiment with all its defaults, or the keys that any experiment
can have.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from tmrl_like.base.options import sentences
from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.components import type_name
from tmrl_like.config.loading import as_yaml
from tmrl_like.config.settings import PARTS, SECTIONS, Settings
from tmrl_like.experiment import Experiment


def main(arguments: Arguments) -> int:
    """Print the experiment as YAML, or the keys."""
    if arguments.place is not None:
        print(as_yaml(arguments.experiment.with_code().as_data()), end="")
        return 0
    print("keys of the experiment, each also an option:")
    print(*_rows("", Settings, skip=tuple(SECTIONS)), sep="\n")
    for name in PARTS:
        print(f"  --{name}.KEY VALUE\n        {sentences(Experiment)[name]}")
    for name, page in SECTIONS.items():
        print(*_rows(f"{name}.", page), sep="\n")
    return 0


def _rows(prefix: str, page: Any, skip: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield two lines for each key: its type, default and meaning."""
    hints, meanings = typing.get_type_hints(page), sentences(page)
    for field in dataclasses.fields(page):
        if dataclasses.is_dataclass(hints[field.name]) and field.name not in skip:
            yield from _rows(f"{prefix}{field.name}.", hints[field.name])
        elif field.name not in skip:
            default = "none" if field.default is None else str(field.default).lower()
            kind = type_name(hints[field.name])
            yield f"  --{prefix}{field.name} ({kind}; {default})\n        {meanings[field.name]}"
