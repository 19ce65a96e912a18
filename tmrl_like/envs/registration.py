"""The environments that ship, by ids of Gymnasium:
`gymnasium.make("tmrl_like.envs:tmrl_like/Drone-v0")`.

Gymnasium 1 finds no plugins by itself: an id is known once the package that registers it has been
imported, which the part before the colon does.
"""

from __future__ import annotations

import importlib
from typing import Any

import gymnasium

IDS: dict[str, tuple[str, dict[str, Any]]] = {  # class, arguments
    "Drone": ("tmrl_like.envs.drone:DroneEnv", {}),
    "Robot": ("tmrl_like.envs.robot:RobotEnv", {}),
    "Racing": ("tmrl_like.envs.racing:RacingEnv", {}),
    "RacingImage": ("tmrl_like.envs.racing:RacingEnv", {"observation": "image", "history": 4}),
    "VizDoom": ("tmrl_like.envs.doom:VizDoomEnv", {}),
}
_METADATA: dict[str, Any] = {"render_modes": ["rgb_array"]}


def make(env_cls: str, render_mode: str | None = None, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """What Gymnasium calls: the class, by its place, with the id's arguments and those of
    `gymnasium.make`.
    """
    module, name = env_cls.split(":")
    env: gymnasium.Env[Any, Any] = getattr(importlib.import_module(module), name)(**arguments)
    inner: Any = env.unwrapped
    inner.render_mode = render_mode
    inner.metadata = _METADATA | {"render_fps": round(1 / inner.time_step_duration)}
    return env


make.metadata = _METADATA  # type: ignore[attr-defined]  # gymnasium.make looks for it there


def register_all() -> None:
    """Make the ids known to Gymnasium: tmrl_like/Drone-v0, ….

    They run in real time, so that two episodes of one seed are as alike as real time allows:
    `nondeterministic`.
    """
    for name, (env_cls, arguments) in IDS.items():
        if (env_id := f"tmrl_like/{name}-v0") not in gymnasium.registry:
            kwargs = {"env_cls": env_cls, **arguments}
            gymnasium.register(env_id, f"{__name__}:make", nondeterministic=True, kwargs=kwargs)
