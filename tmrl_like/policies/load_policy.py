"""Act with a policy file, without server and environment, and without torch if the actor has a form
in numpy.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmrl_like.base import tree
from tmrl_like.base.importing import import_object
from tmrl_like.base.text import one_line
from tmrl_like.errors import ConfigError, PolicyError, TmrlLikeError, expect
from tmrl_like.policies.acting import Actor
from tmrl_like.policies.action_check import is_finite
from tmrl_like.policies.policy_file import Code, PolicyCard, read_policy
from tmrl_like.policies.policy_store import find_policy
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.policies.weight_file import Weights
from tmrl_like.types import Action, Observation, ObsPreprocessor
from tmrl_like.wire.spaces import Space, make_space

_WITH_PARTS = "tmrl_like.agents", "tmrl_like.envs"  # packages that list `POLICY_PARTS`


def without_torch(class_path: str) -> str:
    """Return the import path of the class that does the same without torch, if the package of
    `class_path` names one in `WITHOUT_TORCH`; else `class_path` itself.

    A package that does not exist raises nothing here; importing the class will.
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
        actor: the actor, with the policy's weights.
        obs_preprocessor: applied to each observation first, or None.
        observation_space: space of the observations that `act` takes.
        action_space: space of the actions that `act` returns.
        metadata: the card in the policy's file.
    """

    actor: Actor
    obs_preprocessor: ObsPreprocessor | None
    observation_space: Space
    action_space: Space
    metadata: PolicyCard

    @property
    def version(self) -> int:
        """The policy version, as the trainer numbered it."""
        return self.metadata.version

    def act(self, obs: Observation, test: bool = True) -> Action:
        """Return the action for one raw observation, both in the environment's form; `test` asks
        for the best action.

        Raises:
            PolicyError: the action is not finite, or the actor raised on an observation that is not
                in the observation space.
        """
        seen = obs if self.obs_preprocessor is None else self.obs_preprocessor(obs)
        try:
            action = self.actor.act_(seen, test)
        except Exception as error:
            if self.observation_space.contains(obs):
                raise
            raise PolicyError(
                f"the policy raised on an observation that is not in its observation space: "
                f"expected {self.observation_space}, got {tree.outline(obs)} ({one_line(error)})"
            ) from error
        if not is_finite(action):
            raise PolicyError(
                f"the policy's action is not finite: {one_line(repr(action), 80)}; do not send it; "
                f"its observation was {one_line(repr(obs), 200)}"
            )
        return action

    def reset(self) -> None:
        """Begin an episode: forget recurrent state."""
        self.actor.reset()


def load_policy(
    where: str | Path,
    *,
    allow: Sequence[str] = (),
    actor: Callable[..., Actor] | None = None,
    obs_preprocessor: ObsPreprocessor | None = None,
) -> Policy:
    """Load a policy, with the checks that a worker makes before a policy drives.

    Args:
        where: a policy file; a run by its name or folder (its newest policy); `RUN@TAG` or
            `RUN@VERSION`.
        allow: packages of yours whose code the file may name, e.g. `("my_arm",)`. This code is
            imported and called, so allow only what you know. Without `allow`, a file may name
            built-in actors, their picture encoders and built-in observation preprocessors, which
            do nothing but compute. Other classes of `tmrl_like` can run whatever a file says.
        actor: makes the actor, from `observation_space` and `action_space`, in place of the class
            that the file names: one that a script has defined in itself, for example.
        obs_preprocessor: replaces the one that the file names.

    Raises:
        ConfigError: `allow` is a single text.
        PolicyError: there is no such policy, or its file cannot be used: it names unknown code, its
            parameters do not fit or are not finite, or it has another format.
    """
    path = find_policy(where)
    expect(not isinstance(allow, str), "allow", allow, "a list of packages")
    try:
        card, weights = read_policy(path)
        if card is None:
            raise PolicyError(
                "it holds weights, and does not say of what: take a file of the run's `policies`"
            )
        spaces = [_described(spec, "space") for spec in (card.observation_space, card.action_space)]
        observation_space, action_space = map(make_space, spaces)
        if actor is None:
            code = _described(card.actor, "actor")
            if _ships(code.class_path):
                _refuse_wider(code, weights)
            actor = _actor_of(code, allow)
        if obs_preprocessor is None and card.obs_preprocessor is not None:
            code = _described(card.obs_preprocessor, "obs_preprocessor")
            factory, target = _factory_of(code, allow)
            obs_preprocessor = factory() if isinstance(target, type) else factory
        made = actor(observation_space=observation_space, action_space=action_space)
        if hasattr(made, "eval"):  # not without torch
            made.eval()
        PolicyProbe(observation_space, action_space, obs_preprocessor).load(made, weights)
    except (ConfigError, PolicyError, OSError) as error:
        raise PolicyError(f"{path}: {error}") from None
    except Exception as error:  # from a space or an actor, made as the file says
        raise PolicyError(f"{path} cannot be what it says: {one_line(error, 300)}") from error
    return Policy(made, obs_preprocessor, observation_space, action_space, card)


def _described(part: Any, name: str) -> Any:
    if isinstance(part, str):
        raise PolicyError(
            f"the {name} could not be written down ({part}); give load_policy that argument"
        )
    return part


def _refuse_wider(code: Code, weights: Weights) -> None:
    """Raise PolicyError for hidden layers of a built-in actor that have more parameters than the
    file, before they take memory.
    """
    widths = code.init_args.get("hidden_sizes", ())
    if isinstance(widths, list) and all(isinstance(width, int) for width in widths):
        expected = sum(widths) + sum(map(math.prod, itertools.pairwise(widths)))
        found = sum(math.prod(shape) for _, shape in weights.manifest.values())
        if expected > found:
            raise PolicyError(
                f"hidden_sizes is {one_line(widths, 100)}, which takes {expected:,} parameters or "
                f"more; it holds {found:,}"
            )


def _actor_of(code: Code, allow: Sequence[str]) -> Callable[..., Actor]:
    factory, target = _factory_of(code, allow)
    if not (isinstance(target, type) and issubclass(target, Actor)):
        raise PolicyError(f"{code.class_path} is no actor: expected a subclass of ActorModule")
    return factory


def _factory_of(code: Code, allow: Sequence[str]) -> tuple[Callable[..., Any], Any]:
    """Return the class or function that a file names, with its arguments and without them; raise
    PolicyError if the file may not name it. What needs no torch is taken where there is a choice.
    """
    ships = _ships(code.class_path)
    if not ships:
        _refuse_strangers(code.class_path, code.class_path, allow)
    target = import_object(without_torch(code.class_path))
    if not ships:  # an allowed module may have imported it from elsewhere
        _refuse_strangers(f"{getattr(target, '__module__', '')}.", code.class_path, allow)
    arguments = {name: _value_of(value, allow) for name, value in code.init_args.items()}
    return functools.partial(target, **arguments) if arguments else target, target


def _ships(path: str) -> bool:
    """Whether an import path is one of those that every file may name."""
    return any(
        path.removeprefix(f"{package}.") in import_object(f"{package}.POLICY_PARTS")
        for package in _WITH_PARTS
        if path.startswith(f"{package}.")
    )


def _refuse_strangers(module: str, path: str, allow: Sequence[str]) -> None:
    if any(module.startswith(f"{package}.") for package in allow):
        return
    package = path.partition(".")[0]
    raise PolicyError(
        f"it names {path}, and code of {package} is not imported for a file unless you allow it: "
        f"load_policy(…, allow=({package!r},)), if you trust both; or pass it as the argument "
        "actor or obs_preprocessor"
    )


def _value_of(value: object, allow: Sequence[str]) -> object:
    if isinstance(value, dict) and "class_path" in value:
        return _factory_of(Code(**value), allow)[0]
    if isinstance(value, dict):
        return {key: _value_of(part, allow) for key, part in value.items()}
    return [_value_of(part, allow) for part in value] if isinstance(value, list) else value
