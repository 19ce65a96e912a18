"""Learning algorithms and their networks."""

from tmrl_like.agents.models import EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.sac import REDQAgent, SACAgent

__all__ = ["EnsembleCritic", "REDQAgent", "SACAgent", "SquashedGaussianActor"]
