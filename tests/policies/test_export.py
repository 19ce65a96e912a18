"""A policy as ONNX, against the policy."""

import sys

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium import spaces
from test_load_policy import written

from tmrl_like import load_policy
from tmrl_like.agents import CategoricalActor, SACAgent, SquashedGaussianActor
from tmrl_like.base import tree
from tmrl_like.errors import MissingExtraError, PolicyError
from tmrl_like.policies.export import write_onnx

OBS = spaces.Dict(
    {
        "a": spaces.Box(-np.inf, np.inf, (4,)),
        "b": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-2.0, 5.0, (2, 2)))),
        "c": spaces.MultiBinary(2),
    }
)
BOX = spaces.Box(np.float32([[-2.0, 0.0], [-1.0, 5.0]]), np.float32([[2.0, 1.0], [1.0, 6.0]]))


def flat(obs):
    return np.concatenate([np.ravel(leaf) for leaf in tree.leaves(obs)]).astype(np.float32)


def session_of(policy, path):
    write_onnx(policy, path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("obs_space", "act_space", "options"),
    [
        (OBS, BOX, {"layer_norm": True}),
        (OBS, BOX, {"obs_range": 0.0, "normalize_obs": False}),
        (spaces.Box(-1.0, 1.0, (7,)), spaces.Box(-1.0, 1.0, (1,)), {"hidden_sizes": (256, 256)}),
        (OBS, spaces.Discrete(5, start=2), {}),
        (OBS, spaces.MultiDiscrete([3, 4], start=[1, 0]), {"layer_norm": True}),
    ],
)
def test_its_actions_are_the_policys(obs_space, act_space, options, tmp_path):
    torch.manual_seed(0)
    cls = SquashedGaussianActor if isinstance(act_space, spaces.Box) else CategoricalActor
    actor = cls(obs_space, act_space, **{"hidden_sizes": (32, 16)} | options)
    with torch.no_grad():
        for name, values in actor.state_dict().items():  # as if it had been trained
            values.add_(0.2 * torch.randn_like(values)) if "rescale" not in name else values.mul_(1.3).add_(0.1)
    policy = load_policy(written(tmp_path / "p", actor))
    session = session_of(policy, tmp_path / "p.onnx")
    obs_space.seed(0)
    observations = [obs_space.sample() for _ in range(1000)]
    (actions,) = session.run(None, {"observation": np.stack([flat(obs) for obs in observations])})
    expected = np.stack([policy.act(obs) for obs in observations])
    assert actions.shape == (1000, *act_space.shape)
    assert np.abs(actions - expected).max() <= (1e-5 if isinstance(act_space, spaces.Box) else 0)
    assert all(act_space.contains(action.astype(act_space.dtype)) for action in actions[:50])


def test_running_statistics_are_in_it(tmp_path):
    agent = SACAgent(spaces.Box(-np.inf, np.inf, (3,)), spaces.Box(-1.0, 1.0, (1,)), acceleration="off")
    agent.obs_norm.update(torch.from_numpy(np.random.default_rng(0).normal(50.0, 9.0, (64, 3)).astype(np.float32)))
    policy = load_policy(written(tmp_path / "p", agent.get_actor()))
    obs = np.float32([40.0, 50.0, 60.0])
    (action,) = session_of(policy, tmp_path / "p.onnx").run(None, {"observation": obs[None]})
    np.testing.assert_allclose(action[0], policy.act(obs), atol=1e-6)
    assert abs(float(policy.act(obs)[0])) < 0.99


def test_an_actor_that_sees_images_and_one_without_the_extra_are_refused(tmp_path, monkeypatch):
    pictures = spaces.Box(0, 255, (16, 16, 3), np.uint8)
    policy = load_policy(written(tmp_path / "p", SquashedGaussianActor(pictures, BOX, hidden_sizes=(8,))))
    with pytest.raises(PolicyError, match="a SquashedGaussianActor cannot be written as ONNX: expected a Squashed"):
        write_onnx(policy, tmp_path / "p.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r'writing ONNX needs the extra "onnx": pip install'):
        write_onnx(policy, tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()
