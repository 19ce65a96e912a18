"""`tmrl-like init`: writes an environment, an experiment and a test of your own, ready to run."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import tmrl_like
from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.document import parse_value
from tmrl_like.config.settings import NAME_OF_RUN
from tmrl_like.errors import ConfigError, expect

_TEMPLATES = Path(tmrl_like.__file__).parent / "templates"


def main(arguments: Arguments) -> int:
    """Write the folder."""
    name, kind, folder = arguments.name, arguments.kind, Path(arguments.name)
    class_name = "".join(word.capitalize() for word in name.split("_"))
    is_module = re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None
    is_free = not keyword.iskeyword(name) and not keyword.iskeyword(class_name)
    names_run = NAME_OF_RUN.fullmatch(name) is not None and parse_value(name) == name
    expected = (
        "a name for a Python module, at most 100 letters, no word of Python, YAML or Windows, such "
        "as my_arm"
    )
    expect(is_module and is_free and names_run, "NAME", name, expected)
    if folder.exists():
        raise ConfigError(f"{folder} exists already: take another name, or another working folder")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"there is a Python module {name} already, which yours would hide: take another name"
        )
    code = _template(kind, "my_task.py")
    # a game has a class NameEnv as well
    known = rf"^(?:class|from .+ import) ({class_name}(?:Env)?)\b"
    if taken := re.search(known, code.replace("MyTask", "_"), re.MULTILINE):
        raise ConfigError(f"a {kind} has another class named {taken[1]}: take another name")
    files = {
        f"{name}.py": code,
        f"{name}.yaml": _template(kind, "my_task.yaml") + _template("my_task.yaml"),
        f"test_{name}.py": _template("test_my_task.py"),
    }
    try:
        folder.mkdir()
        for file, text in files.items():
            text = text.replace("my_task", name).replace("MyTask", class_name)
            (folder / file).write_text(text, encoding="utf-8")
            print(folder / file)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from None
    print(f"then: cd {name}; tmrl-like check {name}; tmrl-like run {name}; python -m pytest")
    return 0


def _template(*path: str) -> str:
    return _TEMPLATES.joinpath(*path).read_text(encoding="utf-8")
