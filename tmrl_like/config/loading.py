"""Experiments from files: reads YAML into settings and parts. Each mistake becomes one line with
location and problem.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tmrl_like.base.factories import Elsewhere, Factory, signature_of, taken_apart
from tmrl_like.base.text import suggestion
from tmrl_like.config.components import (
    holds_component,
    is_component,
    make_object,
    make_page,
    resolve_component,
)
from tmrl_like.config.document import (
    Document,
    Keys,
    Loader,
    Location,
    dotted,
    find_experiment,
    parse_document,
    parse_value,
    read_document,
)
from tmrl_like.config.settings import PARTS, SECTIONS, Settings
from tmrl_like.errors import ConfigError

TOP_LEVEL = ("run_name", *PARTS, "crc_debug", "seed", *SECTIONS)
"""Keys of an experiment, in the order in which it is printed."""

Overrides = Sequence[tuple[Keys, str]]

_FACTORIES = ("env", "actor", "agent", "memory", "takeover", "action_chain", "spaces")
_NEEDED_METHODS = {
    "agent": ("train", "get_actor"),
    "actor": ("act",),
    "memory": ("append_buffer", "get_transition"),
    "env": ("reset", "step"),
}


def make_parts(document: Document, parts: Collection[str]) -> dict[str, Any]:
    """Import the code that the experiment names, and return the arguments of `Experiment` other
    than its settings, by name.

    Modules beside the file can be named: the file's folder is put first on Python's module search
    path. `parts` names what to import; what these parts need to know of others is imported too, and
    the rest is None. So a robot does not need the agent's packages, nor the trainer's machine the
    robot's.

    Raises:
        ConfigError: anything is wrong with the file; one line with file, line, key and what was
            expected.
    """
    if document.path is not None and (folder := str(document.path.parent)) not in sys.path:
        sys.path.insert(0, folder)
    wanted = set(parts)
    if "sample_compressor" in parts and "sample_compressor" not in document.data:
        wanted.add("memory")
    made: dict[str, Any] = dict.fromkeys(_NEEDED_METHODS)
    for name, value in document.data.items():
        if name in PARTS and (value is None or name in wanted):
            made[name] = None if value is None else _part(document, name)
    if "memory" in wanted and "env" not in wanted:
        try:
            made["env"] = _part(document, "env")
        except ConfigError:  # a trainer's machine may lack the robot's packages
            made["env"] = Elsewhere
    return made


def settings_of(document: Document) -> Settings:
    """Return the plain values of an experiment. Raises ConfigError if one is wrong."""
    written = {key: value for key, value in document.data.items() if key not in PARTS}
    for key, value in written.items():
        if holds_component(value):
            raise Location(document, (key,)).error(
                "has a class_path, but its values are plain ones; name code in init_args"
            )
    return make_page(
        document,
        (),
        Settings,
        {k: v for k, v in written.items() if v is not None or k not in SECTIONS},
    )


def open_experiment(path: str | Path, overrides: Overrides = ()) -> Document:
    """Read the file, or the experiment of that name that ships, and apply the overrides (keys and
    texts).

    In the result, each part is a `class_path` with `init_args`, even if the file has only an import
    path.

    Raises:
        ConfigError: it cannot be read, has a key that does not exist, or lacks one; one line with
            file and line.
    """
    return _opened(read_document(find_experiment(str(path)) or Path(path)), overrides)


def open_kept(text: str, path: str, overrides: Overrides) -> Document:
    """Do what `open_experiment` does, with a saved text of the file `path`, which may no longer
    exist.
    """
    document = parse_document(text, f"{path} (as it was kept)")
    document.path = Path(path).resolve()
    return _opened(document, overrides)


def with_place(document: Document, problem: str) -> str:
    """Put file, line and key before a problem that begins with the name of an argument that the
    experiment gives to code.

    This is for mistakes that are found only when the code is called, long after the file was read.
    The name may include its part: `memory.gamma`. A problem that begins with a place keeps it.
    """
    if problem.startswith(tuple(f"{place}: " for place in document.origins.values())):
        return problem
    name, _, rest = problem.partition(" ")
    said = tuple(name.split("."))
    places = [
        keys for keys in document.origins if keys[0] in PARTS and _short(keys)[-len(said) :] == said
    ]
    if not places and said[0] in PARTS and len(said) > 1:
        places = [written_out(document.data, said)]
    return (
        f"{document.where(places[0])}: {dotted(places[0])} {rest}" if len(places) == 1 else problem
    )


def _short(keys: Keys) -> Keys:
    return tuple(key for key in keys if key != "init_args")


def _opened(document: Document, overrides: Overrides) -> Document:
    for key, value in document.data.items():
        if key in PARTS and isinstance(value, str):
            document.data[key] = {"class_path": value}
    for keys, text in overrides:
        _override(document, keys, text)
    for key in document.data:
        if key not in TOP_LEVEL:
            problem = f"there is no such key; {suggestion(key, TOP_LEVEL)}"
            raise Location(document, (key,)).error(problem)
    for name in _NEEDED_METHODS:
        if document.data.get(name) is None:
            raise ConfigError(
                f"{document.source}: the key {name} is missing: it names a class_path"
            )
    return document


def as_yaml(data: dict[Any, Any]) -> str:
    """Return plain values as YAML for people: in their order, with short lists on one line."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line, no references, and text in quotes where `Loader` would take
    it for something else.
    """

    yaml_implicit_resolvers = Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_data(self, data: Any) -> yaml.Node:
        # an environment may tell the memory numbers of numpy
        return super().represent_data(data.tolist() if hasattr(data, "tolist") else data)


_Dumper.add_representer(
    list,
    lambda dumper, data: dumper.represent_sequence(
        "tag:yaml.org,2002:seq", data, flow_style=_is_plain(data)
    ),
)


def _override(document: Document, keys: Keys, text: str) -> None:
    """Apply one `--key.key VALUE` to the document; `--agent.lr_actor` is short for
    `--agent.init_args.lr_actor`.
    """
    value, typed = parse_value(text), None
    if keys[0] in PARTS:
        keys = written_out(document.data, keys)
        if len(keys) == 1 and isinstance(value, str):
            value = {"class_path": value}
    elif not isinstance(value, list):
        typed = text
    document.override(keys, value, typed)


def written_out(data: dict[Any, Any], keys: Iterable[object]) -> Keys:
    """Insert the `init_args` that a short key leaves out."""
    written: list[object] = []
    level: object = data
    for key in keys:
        if is_component(level) and key not in ("class_path", "init_args"):
            written.append("init_args")
            level = level.get("init_args")
        written.append(key)
        level = level.get(key) if isinstance(level, dict) else None
    return tuple(written)


def _part(document: Document, name: str) -> Any:
    location = Location(document, (name,))
    component = resolve_component(document, (name,), PARTS[name])
    target = taken_apart(component)[0]
    # parts that are called directly: if the file names a class, make an object of it
    if name not in _FACTORIES:
        return make_object(location, component) if isinstance(target, type) else component
    if isinstance(target, type):
        for method in (
            *_NEEDED_METHODS.get(name, ()),
            *sorted(getattr(target, "__abstractmethods__", ())),
        ):
            found = getattr(target, method, None)
            if not callable(found) or getattr(found, "__isabstractmethod__", False):
                problem = f"{target.__qualname__} cannot be used here: it has no {method}()"
                raise (location / "class_path").error(problem)
    return component


def with_defaults(document: Document, name: str, made: Factory | None, shows_told: bool) -> Any:
    """Return a part as it was written; if it was imported, with those defaults that YAML can
    express.

    `made` is the part's factory, completed with arguments from other parts, which are left out
    unless `shows_told`.
    """
    value: Any = document.data.get(name)
    component = document.components.get((name,))
    if component is None:
        return value
    target, given = taken_apart(component)
    arguments: dict[str, Any] = {}
    for key, parameter in signature_of(target).parameters.items():
        default = (
            list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        )
        if key not in PARTS[name] and _is_plain(default):
            arguments[key] = default
    told = {} if made is None else taken_apart(made)[1]
    for key in told:
        if key in given or key in PARTS[name]:
            continue
        if shows_told:
            arguments[key] = told[key]
        else:
            arguments.pop(key, None)
    arguments |= value.get("init_args") or {}
    return {"class_path": value["class_path"]} | ({"init_args": arguments} if arguments else {})


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
