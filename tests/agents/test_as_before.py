"""A hundred training steps on fixed batches and noise must reproduce recorded losses and
parameters. Two in three of the batches have discounts of their own.

`python tests/agents/test_as_before.py` records those of the present code.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box
from kit.learners import tensors_of, train

from tmrl_like.agents import (
    CategoricalActor,
    CrossQAgent,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    EnsembleCritic,
    IQNActor,
    IQNAgent,
    REDQAgent,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.agents.agent import modules_of

RECORD = Path(__file__).with_name("as_before.json")
STEPS, SHOWN = 100, (1, 2, 10, 50, 100)
OBS = spaces.Tuple((box(1, 5), box(np.inf, 2), spaces.Discrete(3)))
BOX = spaces.Box(np.float32([-2.0, 0.0, -1.0]), np.float32([2.0, 1.0, 1.0]))
CHOICES = spaces.MultiDiscrete([3, 2])
ONE_OF_FOUR = spaces.Discrete(4, start=1)
HIDDEN = {"hidden_sizes": (24, 16)}


def sac(cls=SACAgent, act=BOX, actor_cls=SquashedGaussianActor, of_actor=None, **options):
    """Return a factory of an agent with small networks and fast learning rates."""
    options |= dict.fromkeys(("lr_actor", "lr_critic", "lr_entropy"), 1e-3)
    actor_cls = partial(actor_cls, **HIDDEN, **of_actor or {})
    return partial(cls, OBS, act, actor_cls=actor_cls, **options)


def iqn(layer_norm=True, **options):
    actor_cls = partial(IQNActor, width=16, hidden_size=16, cosines=8, layer_norm=layer_norm)
    return partial(IQNAgent, OBS, ONE_OF_FOUR, actor_cls=actor_cls, lr=1e-3, **options)


RAW = {"normalize_obs": False}
SMOOTH = {"smoothness": 3.0, "learn_entropy_coef": False}
CASES = {
    "SAC": sac(),
    "plain SAC": sac(
        of_actor=RAW,
        actor_polyak=0.0,
        scale_rewards=True,
        critic_cls=partial(EnsembleCritic, layer_norm=False, **RAW),
    ),
    "REDQ": sac(REDQAgent, of_actor={"layer_norm": True}, n_critics=5, policy_delay=3),
    "DroQ": sac(of_actor=RAW, critic_cls=partial(EnsembleCritic, dropout=0.1)),
    "CrossQ": sac(
        CrossQAgent,
        n_critics=3,
        policy_delay=2,
        critic_cls=partial(EnsembleCritic, layer_norm=False, hidden_sizes=(20, 24)),
    ),
    "smooth SAC": sac(n_critics=3, policy_delay=2, **SMOOTH),
    "smooth CrossQ": sac(CrossQAgent, **SMOOTH),
    "discrete SAC": sac(
        DiscreteSACAgent,
        CHOICES,
        CategoricalActor,
        critic_cls=DiscreteEnsembleCritic,
        learn_entropy_coef=False,
    ),
    "IQN": iqn(actor_polyak=0.9),
    "IQN without norms": iqn(layer_norm=False),
}
COMPILED = {"SAC", "smooth SAC", "plain SAC", "REDQ", "CrossQ", "smooth CrossQ"}


def fill(module, seed):
    """Set parameters to values that do not depend on the order in which a module makes them."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            if parameter.numel() > 1 and not name.startswith("average"):
                drawn = 0.6 * torch.rand(parameter.numel(), generator=random) - 0.3
                is_scale = "gains" in name or ("norm" in name and name.endswith("weight"))
                parameter.copy_((drawn + is_scale).view(parameter.shape))
        for name, batches_seen in module.named_buffers():
            if name == "network.count":
                batches_seen.fill_(970)  # CrossQ renormalises from 1,000 on


def trained(case, acceleration):
    """Train an agent; return the losses of some steps, and the final sum and norm of each parameter
    and statistic.
    """
    torch.manual_seed(0)  # for scalar parameters, which `fill` skips
    agent = CASES[case](acceleration=acceleration)
    modules = modules_of(agent)
    for name, module in modules.items():
        fill(module, seed=len(name.split("_")[0]))  # an average begins equal to its original
    if "target" in modules:
        modules["target"].load_state_dict(modules["actor"].state_dict())
    found = {"losses": {}, "values": {}}
    for step in range(1, STEPS + 1):
        own_discount = {"discount": torch.linspace(0.8, 1.0, 32)} if step % 3 else {}
        (metrics,) = train(agent, 1, first=step, **own_discount)
        if step in SHOWN:
            found["losses"] |= {f"{name} in step {step}": value for name, value in metrics.items()}
    for name, value in tensors_of(agent).items():
        found["values"][f"sum of {name}"] = float(value.double().sum())
        found["values"][f"norm of {name}"] = float(value.double().norm())
    return found


@pytest.mark.parametrize(
    ("case", "acceleration"),
    [*((case, "off") for case in CASES), *((case, "auto") for case in sorted(COMPILED))],
)
def test_losses_and_parameters_are_those_that_were_recorded(case, acceleration):
    expected, found = json.loads(RECORD.read_text())[case], trained(case, acceleration)
    assert found["losses"] == pytest.approx(expected["losses"], rel=2e-4, abs=2e-5)
    assert found["values"] == pytest.approx(expected["values"], rel=2e-4, abs=2e-4)


if __name__ == "__main__":
    RECORD.write_text(json.dumps({case: trained(case, "off") for case in CASES}, indent=1) + "\n")
