"""Learning algorithms and their networks.

Each name is imported on first use, so that a worker need not import torch.
"""

from typing import TYPE_CHECKING

from tmrl_like.base.lazy import names_from

if TYPE_CHECKING:
    from tmrl_like.agents.crossq import CrossQAgent as CrossQAgent
    from tmrl_like.agents.discrete import CategoricalActor as CategoricalActor
    from tmrl_like.agents.discrete import DiscreteEnsembleCritic as DiscreteEnsembleCritic
    from tmrl_like.agents.discrete import DiscreteSACAgent as DiscreteSACAgent
    from tmrl_like.agents.iqn import IQNAgent as IQNAgent
    from tmrl_like.agents.iqn_network import IQNActor as IQNActor
    from tmrl_like.agents.models import EnsembleCritic as EnsembleCritic
    from tmrl_like.agents.models import SquashedGaussianActor as SquashedGaussianActor
    from tmrl_like.agents.sac import REDQAgent as REDQAgent
    from tmrl_like.agents.sac import SACAgent as SACAgent

_HOME_OF = {
    "CategoricalActor": "tmrl_like.agents.discrete",
    "CrossQAgent": "tmrl_like.agents.crossq",
    "DiscreteEnsembleCritic": "tmrl_like.agents.discrete",
    "DiscreteSACAgent": "tmrl_like.agents.discrete",
    "EnsembleCritic": "tmrl_like.agents.models",
    "IQNActor": "tmrl_like.agents.iqn_network",
    "IQNAgent": "tmrl_like.agents.iqn",
    "REDQAgent": "tmrl_like.agents.sac",
    "SACAgent": "tmrl_like.agents.sac",
    "SquashedGaussianActor": "tmrl_like.agents.models",
}
__all__ = [*_HOME_OF]
__getattr__ = names_from(__name__, _HOME_OF)

WITHOUT_TORCH = {
    "CategoricalActor": "tmrl_like.agents.in_numpy.NumpyCategoricalActor",
    "SquashedGaussianActor": "tmrl_like.agents.in_numpy.NumpyGaussianActor",
}
"""Import paths of equivalents that need no torch, by the name of the built-in actor."""

POLICY_PARTS = (
    "CategoricalActor",
    "IQNActor",
    "SquashedGaussianActor",
    "images.ConvolutionEncoder",
    "images.PictureEncoder",
)
"""What every policy file may name of this package. Whatever the arguments, these classes only
compute: they import, call and open nothing that an argument names."""
