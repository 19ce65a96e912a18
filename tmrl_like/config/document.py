"""A YAML file as plain data that remembers where each value was written.

Values from the command line (`--trainer.epochs 3`) override the file's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tmrl_like.base.factories import Factory
from tmrl_like.base.text import nearest, one_line
from tmrl_like.errors import ConfigError

Keys = tuple[object, ...]
"""The keys that lead to a value: ("trainer", "epochs")."""

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_COMMAND_LINE = "command line"
_ENDINGS = (".yaml", ".yml")
_UNREADABLE = (ValueError, LookupError, AttributeError)  # what PyYAML raises for `!!bool maybe`


@dataclass
class Document:
    """A mapping of mappings that knows where each of its keys comes from.

    Attributes:
        source: name of the file, for messages.
        data: the values.
        origins: where each key was written: "config/drone.yaml:7" or "command line".
        typed: the text of each plain value that the command line gives.
        components: the imported code by its key; each is made only once, because its arguments may
            be objects.
        path: the file; modules beside it can be named. None: there is no file.
        stamp: identifies the state of the file before it was read, see `stamp_of`; empty if the
            text was not read from the file.
    """

    source: str
    data: dict[Any, Any] = field(default_factory=dict)
    origins: dict[Keys, str] = field(default_factory=dict)
    typed: dict[Keys, str] = field(default_factory=dict)
    components: dict[Keys, Factory] = field(default_factory=dict)
    path: Path | None = None
    stamp: tuple[int, ...] = ()

    def where(self, keys: Keys) -> str:
        """Return file and line of a key; if it was not written itself, of the nearest key above
        it.
        """
        while keys and keys not in self.origins:
            keys = keys[:-1]
        return self.origins.get(keys, self.source)

    def override(self, keys: Keys, value: object, typed: str | None = None) -> None:
        """Set `value` at `keys`, as if the file said so; `typed` is its text if it has one."""
        level = self.data
        for depth, key in enumerate(keys[:-1], 1):
            inner = level.get(key)
            if inner is None:
                inner = level[key] = {}
            if not isinstance(inner, dict):
                raise ConfigError(
                    f"{_COMMAND_LINE}: --{dotted(keys)}: {dotted(keys[:depth])} is {inner!r:.60}, "
                    "which has no keys"
                )
            level = inner
        level[keys[-1]] = value
        for about in (self.origins, self.typed):
            for known in [known for known in about if known[: len(keys)] == keys]:
                del about[known]
        self.origins[keys] = _COMMAND_LINE
        if typed is not None:
            self.typed[keys] = typed


@dataclass(frozen=True)
class Location:
    """A place in a document; `location / key` is that of a key in it."""

    document: Document
    keys: Keys = ()

    def __truediv__(self, key: object) -> Location:
        return Location(self.document, (*self.keys, key))

    def error(self, problem: str) -> ConfigError:
        """Return an error about the value here: file, line, key, problem."""
        return ConfigError(f"{self.document.where(self.keys)}: {dotted(self.keys)}: {problem}")


def shipped() -> dict[str, Path]:
    """Return the experiments that ship with the package, by name; in a working copy they are in the
    folder `config`.
    """
    package = Path(__file__).parents[1]
    installed = package / "experiments"
    folder = installed if installed.is_dir() else package.parent / "config"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_experiment(given: str) -> Path | None:
    """Find the file of an experiment: a given file itself; for a NAME, NAME.yaml in the working
    folder, else the experiment of that name that ships; or None.
    """
    if given.endswith(_ENDINGS) or Path(given).is_file():
        return Path(given)
    own = Path(f"{given}.yaml")
    return own if own.is_file() else shipped().get(given)


def read_document(path: Path) -> Document:
    """Read a YAML file.

    Raises:
        ConfigError: it cannot be read, or is not a YAML mapping; with line and problem.
    """
    stamp = stamp_of(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file{_suggest_file(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not a text file in UTF-8 (byte {error.start})") from None
    document = parse_document(text, str(path))
    document.path, document.stamp = path.resolve(), stamp
    return document


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return values that change when a file is written or replaced; empty if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def parse_document(text: str, source: str) -> Document:
    """Parse YAML text; raises what `read_document` does."""
    document = Document(source)
    try:
        loader = Loader(text)
        node = loader.get_single_node()
        data = {} if node is None else _plain(loader, node, (), document)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        problem = str(error.problem)
        if "block" in problem or "mapping values" in problem:
            problem += " (is the indentation right here and above?)"
        elif "cannot start" in problem:
            problem += " (indent by spaces, not tabs; put text that begins so in quotes)"
        raise ConfigError(f"{source}{line}: is not valid YAML: {one_line(problem)}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ConfigError(f"{source}: is not valid YAML: {one_line(str(error))}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected keys with values (`run_name: …`), got {data!r:.60}")
    document.data = data
    return document


def parse_value(text: str) -> Any:
    """Return the YAML value that `text` stands for, or the text itself if it is not valid YAML."""
    try:
        return yaml.load(text, Loader=Loader)
    except (yaml.YAMLError, *_UNREADABLE):
        return text


def split_overrides(
    arguments: Iterable[str], top_level: Collection[str]
) -> tuple[list[tuple[Keys, str]], list[str]]:
    """Separate `--key.key VALUE` and `--key.key=VALUE` from a command's own arguments.

    Keys in `top_level` may also be written without a dot (`--run_name x`).

    Returns:
        (keys, value) of each override, in order, and the remaining arguments.

    Raises:
        ConfigError: an override without a value.
    """
    overrides: list[tuple[Keys, str]] = []
    others: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, has_value, value = argument.partition("=")
        if not name.startswith("--") or not ("." in name or name[2:] in top_level):
            others.append(argument)
            continue
        if not has_value:
            value = next(rest, "--")
            if value.startswith("--"):
                raise ConfigError(f"{_COMMAND_LINE}: {name} needs a value: {name} VALUE")
        overrides.append((tuple(name[2:].split(".")), value))
    return overrides, others


def dotted(keys: Keys) -> str:
    """Return keys as text: ("trainer", "epochs") -> "trainer.epochs"."""
    return ".".join(map(str, keys))


class Loader(yaml.SafeLoader):
    """YAML 1.1 with the floats of YAML 1.2: 1e-3 is a number."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def _plain(loader: Loader, node: yaml.Node, keys: Keys, document: Document) -> Any:
    """Convert a node to a plain value, and note the line of each key."""
    if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
        raise _not_yaml(node, f"there is no tag {node.tag}")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(loader, item, (*keys, i), document) for i, item in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return _scalar(loader, node)
    _refuse_duplicates(node)
    loader.flatten_mapping(node)
    result = {}
    for key_node, value_node in node.value:
        key = _scalar(loader, key_node)
        if not isinstance(key, str | int | float | bool):
            raise _not_yaml(key_node, "a key must be a word")
        inner = (*keys, key)
        document.origins[inner] = f"{document.source}:{key_node.start_mark.line + 1}"
        result[key] = _plain(loader, value_node, inner, document)
    return result


def _scalar(loader: Loader, node: yaml.Node) -> Any:
    try:
        return loader.construct_object(node, deep=True)
    except _UNREADABLE:
        kind = node.tag.rpartition(":")[2]
        raise _not_yaml(node, f"{node.value!r:.60} is no {kind}") from None


def _refuse_duplicates(node: yaml.MappingNode) -> None:
    seen = []
    for key, _ in node.value:
        if key.value in seen:
            raise _not_yaml(key, f"the key {key.value} is there twice")
        seen.append(key.value)


def _not_yaml(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)


def _suggest_file(path: Path) -> str:
    try:
        names = sorted(p.name for p in path.parent.iterdir() if p.suffix in _ENDINGS)
    except OSError:
        return ""
    names += [] if path.suffix else list(shipped())
    near = nearest(path.name, names)
    return f"; did you mean {path.parent / near}?" if near else ""
