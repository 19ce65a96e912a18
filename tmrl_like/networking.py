"""The three roles. They meet only on the wire; each starts alone and in any order.

Each is loaded when first used, so that a server imports no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_like.server.options import ServerOptions as ServerOptions
    from tmrl_like.server.server import Server as Server
    from tmrl_like.trainer.options import TrainerOptions as TrainerOptions
    from tmrl_like.trainer.trainer import Trainer as Trainer
    from tmrl_like.worker.options import WorkerOptions as WorkerOptions
    from tmrl_like.worker.worker import RolloutWorker as RolloutWorker

_HOME_OF = {
    "RolloutWorker": "worker.worker",
    "Server": "server.server",
    "ServerOptions": "server.options",
    "Trainer": "trainer.trainer",
    "TrainerOptions": "trainer.options",
    "WorkerOptions": "worker.options",
}
__all__ = [*_HOME_OF]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tmrl_like.networking' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tmrl_like.{_HOME_OF[name]}"), name)
