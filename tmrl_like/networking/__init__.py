"""The three roles. They meet only on the wire; each starts alone and in any order."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_like.networking.server import Server as Server
    from tmrl_like.networking.trainer import Trainer as Trainer
    from tmrl_like.networking.worker import RolloutWorker as RolloutWorker

_HOME_OF = {"RolloutWorker": "worker", "Server": "server", "Trainer": "trainer"}
__all__ = ["RolloutWorker", "Server", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tmrl_like.networking' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tmrl_like.networking.{_HOME_OF[name]}"), name)
