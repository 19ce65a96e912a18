"""Policies of Stable-Baselines3 as experts."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box

from tmrl_like import RolloutWorker, partial
from tmrl_like.policies.stable_baselines import StableBaselinesActor

WIDE = spaces.Box(np.float32([-3.0, 0.0]), np.float32([1.0, 9.0]))  # asymmetric bounds


class Still(gymnasium.Env[Any, Any]):
    """An environment that has spaces, and nothing else."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


BOX = box(1, 3)
BOTH = spaces.Dict({"a": BOX, "b": box(1, 2, 2)})


def made(algorithm, policy, observed, actions):
    """Return a model made by Stable-Baselines3."""
    sb3 = pytest.importorskip("stable_baselines3")
    small = {"n_steps": 8} if algorithm == "A2C" else {"buffer_size": 10}
    env, make = Still(observed, actions), getattr(sb3, algorithm)
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


def mean_of(obs, deterministic):
    assert deterministic
    return np.full((1, 2), obs.mean(), np.float32), None


def test_a_model_drives_a_worker():
    model = SimpleNamespace(observation_space=BOX, predict=mean_of)
    env, actor = partial(Still, BOX, WIDE), partial(StableBaselinesActor, model=model)
    with RolloutWorker(env, actor, standalone=True) as worker:
        assert worker.run_episode(max_samples=1).steps == 1
        obs = BOX.sample()
        assert np.allclose(worker.loop.driver.act(obs, test=False), obs.mean())


MIXED = spaces.Dict(b=box(1, 2), a=spaces.Discrete(3, start=1), c=spaces.MultiDiscrete([2, 3]))


def test_parts_are_put_side_by_side_as_gymnasium_does_in_the_order_of_the_space():
    """An environment may return the items of a Dict in another order than its space has them."""
    flat = spaces.flatten_space(MIXED)
    model = SimpleNamespace(observation_space=flat, predict=lambda obs, deterministic: (obs, None))
    actor = StableBaselinesActor(MIXED, flat, model=model)
    obs = {"c": np.array([1, 2]), "b": np.float32([0.1, 0.2]), "a": np.int64(2)}
    assert np.array_equal(actor.act_(obs), spaces.flatten(MIXED, obs))
