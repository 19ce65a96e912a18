"""What the memory of an experiment leaves out because other parts say it."""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from tmrl_like.base.factories import MISSING, argument_of, known_from_env, signature_of
from tmrl_like.config.components import arguments_written, import_component, resolve_component
from tmrl_like.config.document import Document, Keys
from tmrl_like.config.experiment import PARTS
from tmrl_like.errors import ConfigError

_FROM_ENV = ("act_buf_len", "reset_act_buf", "frame_stack")


def complete_memory(document: Document, parts: Collection[str]) -> None:
    """Write to the memory what it takes of what the environment says (see `known_from_env`), and the agent's `gamma`.

    So it is with the memory that this one is made of, if there is one, and with what its `sample_preprocessor` takes
    of the environment's `inputs`. What the file says stays. With `sample_compressor: null` samples travel whole, and
    nothing is the environment's. `parts` can be imported here; the environment's `init_args` tell where it is not among
    them.

    Raises:
        ConfigError: what the memory takes cannot be known here, or contradicts the environment.
    """
    known: dict[str, Any] = {}
    unknown: Collection[str] = ()
    if document.data.get("sample_compressor", "the memory's own") is not None:
        try:
            known = known_from_env(resolve_component(document, ("env",)).factory())
        except ConfigError:
            if "env" in parts:
                raise
            known = known_from_env(
                functools.partial(dict, **arguments_written(document, ("env",), document.data["env"]))
            )
            unknown = [name for name in _FROM_ENV if name not in known]
    if "agent" in parts:
        agent = resolve_component(document, ("agent",), PARTS["agent"]).factory()
        known["gamma"] = argument_of(agent, "gamma")
    places: list[tuple[dict[str, Any], Keys]] = [(document.data, ("memory",))]
    for holder, keys in places:
        component = holder.get(keys[-1])
        if not isinstance(component, dict | str):
            continue
        taken = signature_of(import_component(document, keys, component)).parameters
        given = arguments_written(document, keys, component)
        for name in unknown:
            if name in taken and name not in given:
                problem = f".init_args.{name} is missing: it is the environment's, which cannot be imported here"
                raise document.error(keys, problem)
        for name in given.keys() & known.keys() & {"reset_act_buf", "inputs"}:
            if given[name] != known[name]:
                raise document.error((*keys, "init_args", name), ": is another than the environment's")
        fits = known.keys() & taken.keys() & ({"inputs"} if keys[-1] == "sample_preprocessor" else known.keys())
        given = {name: known[name] for name in known if name in fits and known[name] is not MISSING} | given
        if given:
            path = component["class_path"] if isinstance(component, dict) else component
            holder[keys[-1]] = {"class_path": path, "init_args": given}
        places += [(given, (*keys, "init_args", name)) for name in ("memory", "sample_preprocessor") if name in given]
