"""Experiments from files: YAML in, `Experiment` out. Each mistake is one line that says where and what."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from tmrl_like.base.factories import signature_of
from tmrl_like.base.text import suggestion
from tmrl_like.config.components import holds_component, instantiate, is_component, make_page, resolve_component
from tmrl_like.config.derived import complete_memory
from tmrl_like.config.document import (
    Document,
    Keys,
    dotted,
    find_experiment,
    parse_document,
    parse_value,
    read_document,
)
from tmrl_like.config.experiment import PARTS, SECTIONS, Experiment, Settings
from tmrl_like.errors import ConfigError

TOP_LEVEL = ("run_name", *PARTS, "crc_debug", "seed", *SECTIONS)
"""Keys of an experiment, in the order in which they read best."""

Overrides = Sequence[tuple[Keys, str]]

_FACTORIES = ("env", "actor", "agent", "memory", "takeover", "spaces")
_NEEDED_METHODS = {
    "agent": ("train", "get_actor"),
    "actor": ("act",),
    "memory": ("append_buffer", "get_transition"),
    "env": ("reset", "step"),
}


def load_experiment(
    path: str | Path,
    overrides: Overrides = (),
    parts: Collection[str] = tuple(PARTS),
    instead: Mapping[str, str] = MappingProxyType({}),
) -> Experiment:
    """Read an experiment and import the code that it names.

    Modules beside the file can be named: its folder is put first where Python looks for modules.

    Args:
        path: the YAML file, or the name of an experiment that ships.
        overrides: keys and values (as text) that replace the file's.
        parts: what to import; the rest is None. A robot need not have the agent's packages, nor
            the trainer's machine the robot's.
        instead: import paths that the actor may have, and what is imported in their place.

    Raises:
        ConfigError: anything wrong with the file; one line with file, line, key and what was expected.
    """
    document = open_experiment(path, overrides)
    actor = document.data["actor"]
    written: dict[str, Any] = actor if isinstance(actor, dict) else {"class_path": actor}
    named = written.get("class_path")
    if isinstance(named, str) and named in instead:
        document.data["actor"] = written | {"class_path": instead[named]}
    return _load(document, parts)


def _load(document: Document, parts: Collection[str]) -> Experiment:
    folder = str(Path(document.source).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    settings = settings_of(document)
    has_own_compressor = "sample_compressor" in parts and "sample_compressor" not in document.data
    if "memory" in parts or has_own_compressor:
        complete_memory(document, parts)
    made: dict[str, Any] = {
        name: _part(document, name) if name in parts else None
        for name in PARTS
        if name in _NEEDED_METHODS or document.data.get(name) is not None
    }
    if has_own_compressor:
        made["sample_compressor"] = _memorys_own_compressor(document)
    return Experiment(**vars(settings), **made)


def load_kept(text: str, path: str, overrides: Overrides = (), parts: Collection[str] = tuple(PARTS)) -> Experiment:
    """As `load_experiment`, of these parts of a text that was kept of the file `path`; that may be gone."""
    return _load(_opened(parse_document(text, f"{path} (as it was kept)"), overrides, parts), parts)


def load_settings(path: str | Path, overrides: Overrides = ()) -> Settings:
    """As `load_experiment`, the plain values only: code that the experiment names is not imported."""
    return settings_of(open_experiment(path, overrides))


def settings_of(document: Document) -> Settings:
    """The plain values of an experiment; ConfigError: one that cannot be."""
    written = {key: value for key, value in document.data.items() if key not in PARTS}
    for key, value in written.items():
        if holds_component(value):
            raise document.error((key,), ": has a class_path, but its values are plain ones; name code in init_args")
    return make_page(document, (), Settings, {k: v for k, v in written.items() if v is not None or k not in SECTIONS})


def open_experiment(path: str | Path, overrides: Overrides = ()) -> Document:
    """Read the file, lay the overrides over it, and refuse keys that do not exist; raises as `load_experiment`."""
    return _opened(read_document(Path(find_experiment(str(path)))), overrides)


def with_place(problem: str, path: str | Path, overrides: Overrides = ()) -> str:
    """A problem behind file, line and key, if it begins with the name of an argument that the experiment gives to code.

    For what code finds wrong when it is made, long after the file was read; raises as `load_settings`.
    """
    document, name = open_experiment(path, overrides), problem.partition(" ")[0]
    places = [keys for keys in document.origins if keys[0] in PARTS and keys[-1] == name]
    return f"{document.where(places[0])}: {dotted((*places[0][:-1], ''))}{problem}" if len(places) == 1 else problem


def _opened(document: Document, overrides: Overrides, parts: Collection[str] = tuple(PARTS)) -> Document:
    for keys, text in overrides:
        _override(document, keys, text)
    for key in document.data:
        if key not in TOP_LEVEL:
            raise document.error((key,), f": there is no such key; {suggestion(key, TOP_LEVEL)}")
    for name in _NEEDED_METHODS:
        if name in parts and document.data.get(name) is None:
            raise ConfigError(f"{document.source}: the key {name} is missing: it names a class_path")
    return document


def dump_experiment(path: str | Path, overrides: Overrides = (), parts: Collection[str] = tuple(PARTS)) -> str:
    """Return the experiment as YAML: file, overrides and, of `parts`, all defaults; raises as `load_experiment`."""
    document = open_experiment(path, overrides)
    experiment = _load(document, parts)
    complete: dict[str, Any] = {}
    for name in TOP_LEVEL:
        if name in SECTIONS:
            complete[name] = dataclasses.asdict(getattr(experiment, name))
        elif name in PARTS:
            complete[name] = _complete_part(document, name) if name in parts else document.data.get(name)
        else:
            complete[name] = getattr(experiment, name)
    return as_yaml(complete)


def as_yaml(data: dict[Any, Any]) -> str:
    """Plain values as YAML for people: in their order, short lists on one line."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Short lists on one line, nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=_is_plain(data))
)


def _override(document: Document, keys: Keys, text: str) -> None:
    """Lay one `--key.key VALUE` over the file; `--agent.lr_actor` is short for `--agent.init_args.lr_actor`."""
    value = parse_value(text)
    if keys[0] in PARTS:
        part = document.data.get(keys[0])
        if isinstance(part, str):
            document.override(keys[:1], {"class_path": part})
        keys = _written_out(document.data, keys)
        if len(keys) == 1 and isinstance(part, dict) and isinstance(value, str):
            value = {"class_path": value}
    document.override(keys, value)


def _written_out(data: dict[Any, Any], keys: Keys) -> Keys:
    """Insert the `init_args` that a short key leaves out."""
    written: list[Any] = []
    level: Any = data
    for key in keys:
        if is_component(level) and key not in ("class_path", "init_args"):
            written.append("init_args")
            level = level.get("init_args")
        written.append(key)
        level = level.get(key) if isinstance(level, dict) else None
    return tuple(written)


def _part(document: Document, name: str) -> Any:
    component = resolve_component(document, (name,), PARTS[name])
    is_class = isinstance(component.target, type)
    if name not in _FACTORIES:
        return instantiate(document, (name,), component) if is_class else component.factory()
    if is_class:
        needed = *_NEEDED_METHODS.get(name, ()), *sorted(getattr(component.target, "__abstractmethods__", ()))
        for method in needed:
            found = getattr(component.target, method, None)
            if not callable(found) or getattr(found, "__isabstractmethod__", False):
                raise document.error(
                    (name, "class_path"), f": {component.target.__qualname__} cannot be used here: it has no {method}()"
                )
    return component.factory()


def _memorys_own_compressor(document: Document) -> Any:
    """What the memory's class makes of its arguments; None where it has no compressor of its own."""
    memory = resolve_component(document, ("memory",), PARTS["memory"])
    make = getattr(memory.target, "compressor", None)
    if not callable(make):
        return None
    try:
        return make(**memory.arguments)
    except ConfigError as error:
        raise document.error(("memory",), f": {error}") from None


def _complete_part(document: Document, name: str) -> Any:
    """As it is written, with the defaults that YAML can say; others (classes, objects) stay the class's own."""
    value = document.data.get(name)
    if value is None:
        return None
    written = value if isinstance(value, dict) else {"class_path": value}
    parameters = signature_of(resolve_component(document, (name,), PARTS[name]).target).parameters
    defaults = {key: list(p.default) if isinstance(p.default, tuple) else p.default for key, p in parameters.items()}
    plain = {key: value for key, value in defaults.items() if key not in PARTS[name] and _is_plain(value)}
    arguments = plain | (written.get("init_args") or {})
    return {"class_path": written["class_path"]} | ({"init_args": arguments} if arguments else {})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
