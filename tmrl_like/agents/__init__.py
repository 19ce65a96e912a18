"""Learning algorithms and their networks."""

from tmrl_like.agents.discrete import CategoricalActor, DiscreteEnsembleCritic, DiscreteSACAgent
from tmrl_like.agents.models import EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.sac import REDQAgent, SACAgent

__all__ = [
    "CategoricalActor",
    "DiscreteEnsembleCritic",
    "DiscreteSACAgent",
    "EnsembleCritic",
    "REDQAgent",
    "SACAgent",
    "SquashedGaussianActor",
]
