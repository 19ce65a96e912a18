"""The three roles: server, worker and trainer. They interact only through messages, and can be
started separately and in any order.

Each name is imported on first use, so that a server does not import torch.
"""

from typing import TYPE_CHECKING

from tmrl_like.base.lazy import names_from

if TYPE_CHECKING:
    from tmrl_like.engine.options import EngineOptions as EngineOptions
    from tmrl_like.server.options import ServerOptions as ServerOptions
    from tmrl_like.server.server import Server as Server
    from tmrl_like.trainer.options import TrainerOptions as TrainerOptions
    from tmrl_like.trainer.trainer import Trainer as Trainer
    from tmrl_like.worker.options import WorkerOptions as WorkerOptions
    from tmrl_like.worker.worker import RolloutWorker as RolloutWorker

_HOME_OF = {
    "EngineOptions": "tmrl_like.engine.options",
    "RolloutWorker": "tmrl_like.worker.worker",
    "Server": "tmrl_like.server.server",
    "ServerOptions": "tmrl_like.server.options",
    "Trainer": "tmrl_like.trainer.trainer",
    "TrainerOptions": "tmrl_like.trainer.options",
    "WorkerOptions": "tmrl_like.worker.options",
}
__all__ = [*_HOME_OF]
__getattr__ = names_from(__name__, _HOME_OF)
