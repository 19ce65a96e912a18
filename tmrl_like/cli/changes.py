"""Finds what has changed in an experiment since the last start of its run's trainer."""

from __future__ import annotations

from typing import Any

from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.document import read_document

_SHAPES_A_POLICY = ("env", "actor", "obs_preprocessor")
_SHAPES_A_TRAINING = (*_SHAPES_A_POLICY, "agent", "memory")
_LISTED = 4


def changes_since(arguments: Arguments) -> str:
    """Return a text with the values of the run's experiment.yaml that have changed; empty if none
    has.

    It covers the parts in `_SHAPES_A_POLICY` for a command that needs no agent, else those in
    `_SHAPES_A_TRAINING`.

    Raises:
        ConfigError: there is no such file, or the experiment's code cannot be imported.
    """
    parts = _SHAPES_A_TRAINING if arguments.command in ("run", "trainer") else _SHAPES_A_POLICY
    experiment = arguments.experiment.with_code(parts)
    then = flat(read_document(experiment.paths.folder / "experiment.yaml").data)
    now = flat(experiment.as_data())
    names = [
        name
        for name in {**then, **now}
        if name.partition(".")[0] in parts and then.get(name) != now.get(name)
    ]
    said = [
        f"{name} was {one_line(then.get(name), 60) or 'empty'}, "
        f"is {one_line(now.get(name), 60) or 'empty'}"
        for name in names[:_LISTED]
    ]
    return f" (changed since the run's last start: {'; '.join(said)})" if said else ""


def flat(data: Any, name: str = "") -> dict[str, Any]:
    """Return the numbers, bools and texts of an experiment under their names on the command line
    ("agent.lr_actor"), lists as text. The class of a part has the part's own name.
    """
    if not isinstance(data, dict):
        return {} if data is None else {name: str(data) if isinstance(data, list) else data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        below = name if key in ("class_path", "init_args") else f"{name}.{key}".lstrip(".")
        found |= flat(value, below)
    return found
