"""Train robots, games and simulators in real time, over a network, with deep reinforcement learning.

Importing this package does nothing but make names available: each is loaded from its module when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_like.agents.agent import TrainingAgent as TrainingAgent
    from tmrl_like.base.functional import partial as partial
    from tmrl_like.envs import GenericGymEnv as GenericGymEnv
    from tmrl_like.networking import RolloutWorker as RolloutWorker
    from tmrl_like.networking import Server as Server
    from tmrl_like.networking import Trainer as Trainer
    from tmrl_like.policies.actor import ActorModule as ActorModule
    from tmrl_like.replay.contract import MemoryDataloading as MemoryDataloading
    from tmrl_like.trainer.schedule import TrainingOffline as TrainingOffline

__version__ = "0.1.0"

_HOME_OF = {
    "ActorModule": "actor",
    "GenericGymEnv": "envs",
    "MemoryDataloading": "memory_dataloading",
    "RolloutWorker": "networking",
    "Server": "networking",
    "Trainer": "networking",
    "TrainingAgent": "training",
    "TrainingOffline": "training_offline",
    "partial": "util",
}

__all__ = [*sorted(_HOME_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tmrl_like' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tmrl_like.{_HOME_OF[name]}"), name)
