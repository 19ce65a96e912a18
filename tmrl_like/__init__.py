"""Train robots, games and simulators in real time, over a network, with deep reinforcement
learning.

Importing the package loads none of its modules: each public name is imported from its module on
first use.
"""

from typing import TYPE_CHECKING

from tmrl_like.base.lazy import names_from

if TYPE_CHECKING:
    from tmrl_like.agents.agent import TrainingAgent as TrainingAgent
    from tmrl_like.base.functional import partial as partial
    from tmrl_like.envs import GenericGymEnv as GenericGymEnv
    from tmrl_like.experiment import Experiment as Experiment
    from tmrl_like.experiment import load_experiment as load_experiment
    from tmrl_like.networking import RolloutWorker as RolloutWorker
    from tmrl_like.networking import Server as Server
    from tmrl_like.networking import Trainer as Trainer
    from tmrl_like.policies.actor import ActorModule as ActorModule
    from tmrl_like.policies.load_policy import load_policy as load_policy
    from tmrl_like.replay.contract import MemoryDataloading as MemoryDataloading
    from tmrl_like.trainer.schedule import TrainingOffline as TrainingOffline

__version__ = "0.1.0"

_HOME_OF = {
    "ActorModule": "tmrl_like.actor",
    "Experiment": "tmrl_like.experiment",
    "GenericGymEnv": "tmrl_like.envs",
    "MemoryDataloading": "tmrl_like.memory_dataloading",
    "RolloutWorker": "tmrl_like.networking",
    "Server": "tmrl_like.networking",
    "Trainer": "tmrl_like.networking",
    "TrainingAgent": "tmrl_like.training",
    "TrainingOffline": "tmrl_like.training_offline",
    "load_experiment": "tmrl_like.experiment",
    "load_policy": "tmrl_like.policies.load_policy",
    "partial": "tmrl_like.util",
}

__all__ = [*sorted(_HOME_OF), "__version__"]
__getattr__ = names_from(__name__, _HOME_OF)
