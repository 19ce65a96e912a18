"""`tmrl-like init`: writes an environment, an experiment and a test of your own, ready to run."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import tmrl_like
from tmrl_like.cli.arguments import Arguments
from tmrl_like.errors import ConfigError, expect

_FILES = {  # each file, and the templates that it is made of
    "{}.py": ("{}/my_task.py",),
    "{}.yaml": ("{}/my_task.yaml", "my_task.yaml"),
    "test_{}.py": ("test_my_task.py",),
}


def main(arguments: Arguments) -> int:
    """Write the folder."""
    name, folder = arguments.name, Path(arguments.name)
    is_module = re.fullmatch(r"[a-z][a-z0-9_]*", name) is not None and not keyword.iskeyword(name)
    expect(is_module, "NAME", name, "a name for a Python module, such as my_arm")
    if folder.exists():
        raise ConfigError(f"{folder} exists already: take another name, or another working folder")
    if importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"there is a Python module {name} already, which yours would hide: take another name"
        )
    templates = Path(tmrl_like.__file__).parent / "templates"
    class_name = "".join(word.capitalize() for word in name.split("_"))
    expect(not keyword.iskeyword(class_name), "NAME", name, "a name for a class as well")
    code = (templates / arguments.kind / "my_task.py").read_text(encoding="utf-8")
    code = code.replace("MyTask", "_")  # these get the name
    # a game has a class NameEnv as well
    if taken := re.search(
        rf"^(?:class|from .+ import) ({class_name}(?:Env)?)\b", code, re.MULTILINE
    ):
        raise ConfigError(
            f"a {arguments.kind} has another class named {taken[1]}: take another name"
        )
    try:
        folder.mkdir()
        for suffix, parts in _FILES.items():
            text = "".join(
                (templates / part.format(arguments.kind)).read_text(encoding="utf-8")
                for part in parts
            )
            file = folder / suffix.format(name)
            file.write_text(
                text.replace("my_task", name).replace("MyTask", class_name), encoding="utf-8"
            )
            print(file)
    except OSError as error:
        raise ConfigError(f"cannot write {folder}: {error.strerror}") from None
    print(f"then: cd {name}; tmrl-like check {name}; tmrl-like run {name}; python -m pytest")
    return 0
