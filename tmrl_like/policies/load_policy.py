"""Act with a policy file: without server and environment, and without torch where the actor is one
that ships.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmrl_like.base.importing import import_object
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, PolicyError, TmrlLikeError
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.policy_file import Code, PolicyCard, read_policy
from tmrl_like.policies.policy_store import find_policy
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.types import Action, Observation, ObsPreprocessor
from tmrl_like.wire.spaces import Space, make_space

_OURS = __name__.partition(".")[0]


def without_torch(class_path: str) -> str:
    """Where a package says in `WITHOUT_TORCH` what does the same as a class of its own without
    torch: that one's path.

    Else the path itself, as it is where there is no such package: whoever imports the class says
    so.
    """
    package, _, name = class_path.rpartition(".")
    try:
        return str(import_object(f"{package}.WITHOUT_TORCH").get(name, class_path))
    except TmrlLikeError:
        return class_path


@dataclass(frozen=True, repr=False)
class Policy:
    """A policy, ready to act. One thread at a time.

    Attributes:
        actor: what acts.
        obs_preprocessor: what an observation goes through before; None: nothing.
        observation_space: what `act` takes.
        action_space: what it gives.
        metadata: all that its file says of it.
    """

    actor: Actor
    obs_preprocessor: ObsPreprocessor | None
    observation_space: Space
    action_space: Space
    metadata: PolicyCard

    @property
    def version(self) -> int:
        """The trainer's number."""
        return self.metadata.version

    def act(self, obs: Observation, test: bool = True) -> Action:
        """The action for one raw observation, as the environment gives and takes them; `test`: the
        best one.
        """
        if self.obs_preprocessor is not None:
            obs = self.obs_preprocessor(obs)
        return self.actor.act_(obs, test)

    def reset(self) -> None:
        """An episode begins: forget what is remembered of the one before."""
        self.actor.reset()


def load_policy(
    where: str | Path,
    *,
    allow: Sequence[str] = (),
    actor: Callable[..., Actor] | None = None,
    obs_preprocessor: ObsPreprocessor | None = None,
) -> Policy:
    """Load a policy; it has passed the checks that a worker makes before one drives.

    Args:
        where: a policy file; a run by its name or folder (its newest policy); `RUN@TAG` or
            `RUN@VERSION`.
        allow: packages of yours that the file may name code of, e.g. `("my_arm",)`. It is imported
            and called, so allow only what you know. Without it a file may name the actors that
            ship, and parts of the environments that do.
        actor: makes the actor, from `observation_space` and `action_space`, in place of what the
            file names.
        obs_preprocessor: in place of what the file names.

    Raises:
        PolicyError: there is none, or it cannot be what its file says: unknown code, parameters
            that do not fit or are not finite, another format.
    """
    path = find_policy(where)
    try:
        card, weights = read_policy(path)
        if card is None:
            raise PolicyError(
                "it holds weights, and does not say of what: take a file of the run's `policies`"
            )
        spaces = [_described(spec, "space") for spec in (card.observation_space, card.action_space)]
        observation_space, action_space = map(make_space, spaces)
        make_actor = actor or _actor_of(_described(card.actor, "actor"), allow)
        if obs_preprocessor is None and card.obs_preprocessor is not None:
            obs_preprocessor = _preprocessor_of(
                _described(card.obs_preprocessor, "obs_preprocessor"), allow
            )
        made = make_actor(observation_space=observation_space, action_space=action_space)
        PolicyProbe(observation_space, action_space, obs_preprocessor).load(made, weights)
    except (ConfigError, PolicyError, OSError) as error:
        raise PolicyError(f"{path}: {error}") from None
    except Exception as error:  # of a space or an actor that is made from what the file says
        raise PolicyError(f"{path} cannot be what it says: {one_line(error, 300)}") from error
    return Policy(made, obs_preprocessor, observation_space, action_space, card)


def _described(part: Any, name: str) -> Any:
    if isinstance(part, str):
        raise PolicyError(
            f"the {name} could not be written down ({part}); give load_policy that argument"
        )
    return part


def _actor_of(code: Code, allow: Sequence[str]) -> Callable[..., Actor]:
    factory, target = _factory_of(code, allow, without_torch)
    if not (
        isinstance(target, type) and hasattr(target, "act_") and hasattr(target, "load_weights")
    ):
        raise PolicyError(f"{code.class_path} is no actor: expected a subclass of ActorModule")
    return factory


def _preprocessor_of(code: Code, allow: Sequence[str]) -> ObsPreprocessor:
    factory, target = _factory_of(code, allow)
    return factory() if isinstance(target, type) else factory


def _factory_of(
    code: Code, allow: Sequence[str], instead: Callable[[str], str] = str
) -> tuple[Callable[..., Any], Any]:
    """What a file names, if it may, with its arguments and without; `instead` of its import path it
    may be another.
    """
    _refuse_strangers(code.class_path, code.class_path, allow)
    target = import_object(instead(code.class_path))
    # what a module has imported
    _refuse_strangers(f"{getattr(target, '__module__', '')}.", code.class_path, allow)
    arguments = {name: _value_of(value, allow) for name, value in code.init_args.items()}
    return functools.partial(target, **arguments) if arguments else target, target


def _refuse_strangers(module: str, path: str, allow: Sequence[str]) -> None:
    if any(module.startswith(f"{package}.") for package in allow):
        return
    ours, room, *_ = f"{module}.".split(".")
    if ours == _OURS and _may_be_named(room):
        return
    package = path.partition(".")[0]
    raise PolicyError(
        f"it names {path}, and code of {package} is not imported for a file unless you allow it: "
        f"load_policy(…, allow=({package!r},)), if you trust both"
    )


def _may_be_named(room: str) -> bool:
    try:
        return bool(import_object(f"{_OURS}.{room}.POLICY_PARTS"))
    except TmrlLikeError:  # no such room, or it does not say so
        return False


def _value_of(value: object, allow: Sequence[str]) -> object:
    if isinstance(value, dict) and "class_path" in value:
        return _factory_of(Code(**value), allow)[0]
    if isinstance(value, dict):
        return {key: _value_of(part, allow) for key, part in value.items()}
    return [_value_of(part, allow) for part in value] if isinstance(value, list) else value
