"""Learning algorithms and their networks. Each name is loaded from its module when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tmrl_like.agents.discrete import CategoricalActor as CategoricalActor
    from tmrl_like.agents.discrete import DiscreteEnsembleCritic as DiscreteEnsembleCritic
    from tmrl_like.agents.discrete import DiscreteSACAgent as DiscreteSACAgent
    from tmrl_like.agents.models import EnsembleCritic as EnsembleCritic
    from tmrl_like.agents.models import SquashedGaussianActor as SquashedGaussianActor
    from tmrl_like.agents.sac import REDQAgent as REDQAgent
    from tmrl_like.agents.sac import SACAgent as SACAgent

_HOME_OF = {
    "CategoricalActor": "discrete",
    "DiscreteEnsembleCritic": "discrete",
    "DiscreteSACAgent": "discrete",
    "EnsembleCritic": "models",
    "REDQAgent": "sac",
    "SACAgent": "sac",
    "SquashedGaussianActor": "models",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'tmrl_like.agents' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tmrl_like.agents.{_HOME_OF[name]}"), name)
