"""Sphinx extension: tables that the code itself holds are made while the pages are built.

    ```{reference} options worker
    ```

`options SECTION` are the keys of an experiment's section ("top": those of none), or of a class by
its import path, `commands` all commands, `command NAME` what may stand behind one, `figures` what a
worker says of itself, `fleet` the sums of these in the trainer's metrics, `faults AREA` a table of
tests/reliability.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from tmrl_like.base.importing import import_object
from tmrl_like.cli.arguments import parsers
from tmrl_like.config.components import type_name
from tmrl_like.config.settings import SECTIONS, Settings
from tmrl_like.wire.condition import FIGURES

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import reliability

Row = tuple[str, ...]


class Reference(SphinxDirective):
    """What the first argument names, of what the second one names."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        kind, *name = self.arguments
        return self.parse_text_to_nodes(MAKERS[kind](*name))


def options(of: str) -> str:
    """Each key of a section, or each field of a class of options, with type, default and
    meaning.
    """
    page = {"top": Settings, **SECTIONS}.get(of) or import_object(of)
    return table(("key", "type", "default", "meaning"), option_rows(page))


def option_rows(page: type, prefix: str = "") -> Iterator[Row]:
    hints, meanings = typing.get_type_hints(page), sentences(page)
    for field in dataclasses.fields(page):
        kind = hints[field.name]
        if not dataclasses.is_dataclass(kind):
            yield (
                f"`{prefix}{field.name}`",
                type_name(kind),
                written(field.default),
                meanings[field.name].rstrip("."),
            )
        elif page is not Settings:
            yield from option_rows(typing.cast(type, kind), f"{prefix}{field.name}.")


def sentences(page: type) -> dict[str, str]:
    """Return the sentence for each field, from the `Attributes:` of a class and its bases."""
    found: dict[str, str] = {}
    for cls in reversed(page.__mro__):
        doc = inspect.cleandoc(cls.__doc__ or "")  # Python 3.13 indents less
        for entry in re.split(r"\n    (?=\w+: )", doc.partition("Attributes:")[2])[1:]:
            name, _, sentence = entry.partition(": ")
            found[name] = " ".join(sentence.split())
    return found


def written(default: object) -> str:
    """A default as YAML has it."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return str(default).lower()
    return "`.inf`" if default == math.inf else f"`{default}`"


def commands() -> str:
    """Each command with its sentence."""
    known = parsers()[1]
    return table(
        ("command", "what it does"),
        ((f"[`{name}`](#{name})", first_sentence(known[name])) for name in known),
    )


def first_sentence(parser: argparse.ArgumentParser) -> str:
    return plain(str(parser.description).partition(". ")[0].rstrip("."))


def command(name: str) -> str:
    """What may be written behind a command, and behind its actions."""
    parser = parsers()[1][name]
    found = [table(("option", "meaning"), argument_rows(parser))]
    for chosen in arguments_of(parser):
        if isinstance(chosen, argparse._SubParsersAction):
            meanings = {made.dest: made.help or "" for made in chosen._get_subactions()}
            rows: list[Row] = []
            for action, made in chosen.choices.items():
                names = [
                    str(argument.metavar)
                    for argument in arguments_of(made)
                    if not argument.option_strings
                ]
                rows.append((f"`{' '.join([name, action, *names])}`", plain(meanings[action])))
                rows += argument_rows(made)
            found.append(table(("action", "meaning"), rows))
    return "\n\n".join(found)


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def argument_rows(parser: argparse.ArgumentParser) -> Iterator[Row]:
    """Each argument that the page does not explain once for all commands."""
    for argument in arguments_of(parser):
        if argument.help is None or argument.dest in ("help", "log_level", "place"):
            continue
        takes = " | ".join(argument.choices or ()) or argument.metavar or argument.dest.upper()
        if not argument.option_strings:
            yield f"`{takes}`", plain(argument.help)
        elif argument.nargs == 0:
            yield f"`{argument.option_strings[-1]}`", plain(argument.help)
        else:
            yield f"`{argument.option_strings[-1]} {takes}`", plain(argument.help)


def plain(text: str) -> str:
    """A help text, with options as code."""
    return re.sub(r"(?<![`\w-])--[a-z][\w.-]*\w", r"`\g<0>`", text)


def figures() -> str:
    """What a worker says of itself."""
    return table(
        ("name", "unit", "meaning"),
        ((f"`{name}`", f.unit, f.meaning) for name, f in FIGURES.items()),
    )


def fleet() -> str:
    """What the trainer sums up of that."""
    summed = ((field, f) for field, f in FIGURES.items() if f.is_summed)
    whose = {True: "over all workers since each started", False: "over the living workers"}
    rows = (
        (f"`{f.metric_of(field)}`", f.unit, f"{f.meaning}, {whose[f.grows]}") for field, f in summed
    )
    return table(("name", "unit", "meaning"), rows)


def faults(area: str) -> str:
    """The faults of an area that tests put in."""
    return reliability.table(area)


def table(header: Row, rows: Iterable[Row]) -> str:
    """In Markdown; nothing where there are no rows."""
    found = list(rows)
    if not found:
        return ""
    ruler = ("---",) * len(header)
    return "\n".join(line(row) for row in (header, ruler, *found))


def line(row: Row) -> str:
    """One row of a table."""
    cells = (cell.replace("|", "\\|") for cell in row)
    return f"| {' | '.join(cells)} |"


MAKERS: dict[str, Callable[..., str]] = {
    "options": options,
    "command": command,
    "commands": commands,
    "figures": figures,
    "fleet": fleet,
    "faults": faults,
}


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("reference", Reference)
    return {"parallel_read_safe": True}
