"""Policies of Stable-Baselines3 as experts."""

from types import SimpleNamespace
from unittest.mock import Mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import MIXED, box

from tmrl_like.policies.stable_baselines import StableBaselinesActor

WIDE = spaces.Box(np.float32([-3.0, 0.0]), np.float32([1.0, 9.0]))  # asymmetric bounds


BOX = box(1, 3)
BOTH = spaces.Dict({"a": BOX, "b": box(1, 2, 2)})


def made(algorithm, policy, observed, actions):
    """Return a model made by Stable-Baselines3."""
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"n_steps": 8} if algorithm == "A2C" else {"buffer_size": 10}
    env, make = gymnasium.Env(), getattr(sb3, algorithm)
    env.observation_space, env.action_space = observed, actions
    model = make(policy, env, policy_kwargs={"net_arch": [8, 8]}, seed=1, device="cpu", **small)
    torch.manual_seed(0)
    for parameter in model.policy.parameters():
        # untrained, it would act almost independently of the observation
        parameter.data.normal_().mul_(parameter.ndim > 1)
    return model


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algorithm", "policy", "observed", "actions"),
    [
        ("SAC", "MultiInputPolicy", BOTH, WIDE),
        ("A2C", "MlpPolicy", spaces.Discrete(30), spaces.Discrete(9)),
    ],
)
def test_an_expert_does_what_the_policy_does(algorithm, policy, observed, actions):
    model = made(algorithm, policy, observed, actions)
    actor = StableBaselinesActor(observed, actions, model=model)
    done = set()
    for _ in range(20):
        obs = observed.sample()
        expected, _ = model.predict(obs, deterministic=True)
        action = actor.act_(obs)
        assert actions.contains(action)
        assert np.allclose(action, expected, atol=1e-5)
        done.add(np.asarray(expected).tobytes())
    assert len(done) > 1


def test_parts_are_put_side_by_side_as_gymnasium_does_in_the_order_of_the_space():
    """An environment may return the items of a Dict in another order than its space has them."""
    flat = spaces.flatten_space(MIXED)
    predict = Mock(side_effect=lambda obs, deterministic: (obs, None))
    model = SimpleNamespace(observation_space=flat, predict=predict)
    actor = StableBaselinesActor(MIXED, flat, model=model)
    obs = dict(reversed(MIXED.sample().items()))
    assert np.array_equal(actor.act_(obs), spaces.flatten(MIXED, obs))
    assert predict.call_args.kwargs["deterministic"]
