"""Policies exported as ONNX, compared with the original policies."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import CAR, MIXED, box
from kit.fakes import LinearActor
from kit.learners import rows_of
from kit.policies import written

from tmrl_like import load_policy
from tmrl_like.agents import CategoricalActor, IQNActor, SquashedGaussianActor
from tmrl_like.base import tree
from tmrl_like.errors import MissingExtraError, PolicyError
from tmrl_like.policies.export import write_onnx

onnxruntime = pytest.importorskip("onnxruntime")
PARTS = spaces.Tuple((box(np.inf, 4), MIXED))
BOX = spaces.Box(np.float32([[-2.0, 0.0], [-1.0, 5.0]]), np.float32([[2.0, 1.0], [1.0, 6.0]]))

VECTOR = box(1, 7)


class Steering(LinearActor):
    """A user's own actor."""

    def best_actions(self, obs):
        return torch.tanh(self.layer(obs))


class Branching(Steering):
    def best_actions(self, obs):
        return super().best_actions(obs) if float(obs.sum()) > 0 else obs[:, :1]


def inputs_of(observations):
    walked = [list(tree.walk(obs)) for obs in observations]
    names = [".".join(map(str, ("observation", *path))) for path, _ in walked[0]]
    return {name: np.stack([parts[i][1] for parts in walked]) for i, name in enumerate(names)}


def as_if_trained(actor):
    with torch.no_grad():
        for name, values in actor.state_dict().items():
            if name != "behaviour":
                values.add_(0.1 * torch.randn_like(values))
        if isinstance(actor, IQNActor):  # so that no action is always the best one
            seen = rows_of(actor.observation_space, 200)
            actor.advantage.bias -= actor(seen).mean(dim=0)


@pytest.mark.parametrize(
    ("cls", "obs_space", "act_space", "options"),
    [
        (SquashedGaussianActor, PARTS, BOX, {"layer_norm": True}),
        pytest.param(
            CategoricalActor,
            PARTS,
            spaces.MultiDiscrete([3, 4], start=[1, 0]),
            {"layer_norm": True},
            marks=pytest.mark.long,
        ),
        (IQNActor, CAR, spaces.Discrete(3), {"width": 32, "hidden_size": 16}),
        (Steering, VECTOR, box(1, 1), {}),
    ],
)
def test_its_actions_are_the_policys(cls, obs_space, act_space, options, tmp_path):
    torch.manual_seed(0)
    actor = cls(obs_space, act_space, **options)
    as_if_trained(actor)
    obs_space.seed(0)
    observations = [obs_space.sample() for _ in range(200)]
    policy = load_policy(written(tmp_path / "p", actor), allow=(__name__,))
    write_onnx(policy, str(tmp_path / "p.onnx"))
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx", providers=["CPUExecutionProvider"])
    (actions,) = session.run(None, inputs_of(observations))
    expected = np.stack([policy.act(obs) for obs in observations])
    assert np.abs(actions - expected).max() <= (1e-5 if isinstance(act_space, spaces.Box) else 0)
    assert all(act_space.contains(action.astype(act_space.dtype)) for action in actions[:50])
    assert len(np.unique(actions)) > 1


def test_an_actor_that_cannot_be_written_is_refused(tmp_path):
    path = written(tmp_path / "p", Branching(VECTOR, box(1, 1)))
    policy = load_policy(path, allow=(__name__,))
    with pytest.raises(PolicyError, match=r"torch cannot write Branching.best_actions as ONNX: "):
        write_onnx(policy, tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()


def test_a_preprocessor_that_takes_no_sampled_observation_is_one_line(tmp_path):
    path = written(tmp_path / "p", Steering(VECTOR, BOX))
    policy = load_policy(path, allow=(__name__,), obs_preprocessor=lambda obs: obs["no such part"])
    with pytest.raises(PolicyError, match="the obs_preprocessor raises on observations that are"):
        write_onnx(policy, tmp_path / "p.onnx")


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    policy = load_policy(written(tmp_path / "p", Steering(VECTOR, BOX)), allow=(__name__,))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'writing ONNX needs the extra "onnx": pip insta'):
        write_onnx(policy, tmp_path / "p.onnx")
