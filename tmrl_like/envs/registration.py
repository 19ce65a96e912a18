"""Gymnasium ids of the environments that ship:
`gymnasium.make("tmrl_like.envs:tmrl_like/Drone-v0")`.

Gymnasium 1 does not discover plugins: it knows an id once the package that registers it has been
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
    """Make an environment of the class `env_cls`, given as "module:name"; `gymnasium.make` calls
    this with its own arguments and those of the id.
    """
    module, name = env_cls.split(":")
    env: gymnasium.Env[Any, Any] = getattr(importlib.import_module(module), name)(**arguments)
    inner: Any = env.unwrapped
    inner.render_mode = render_mode
    inner.metadata = _METADATA | {"render_fps": round(1 / inner.time_step_duration)}
    return env


make.metadata = _METADATA  # type: ignore[attr-defined]  # gymnasium.make looks for it there


def register_all() -> None:
    """Register the ids with Gymnasium: tmrl_like/Drone-v0, ….

    They are `nondeterministic`: they run in real time, so two episodes with one seed are only as
    alike as real time allows.
    """
    for name, (env_cls, arguments) in IDS.items():
        if (env_id := f"tmrl_like/{name}-v0") not in gymnasium.registry:
            kwargs = {"env_cls": env_cls, **arguments}
            gymnasium.register(env_id, f"{__name__}:make", nondeterministic=True, kwargs=kwargs)
