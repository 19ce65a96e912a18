"""A policy as ONNX, against the policy."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.policies import written

from tmrl_like import load_policy
from tmrl_like.actor import ActorModule
from tmrl_like.agents import CategoricalActor, IQNActor, SquashedGaussianActor
from tmrl_like.base import tree
from tmrl_like.errors import MissingExtraError, PolicyError
from tmrl_like.policies.export import write_onnx

onnxruntime = pytest.importorskip("onnxruntime")
OBS = spaces.Dict(
    {
        "a": spaces.Box(-np.inf, np.inf, (4,)),
        "b": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.Box(-2.0, 5.0, (2, 2)))),
        "c": spaces.MultiBinary(2),
    }
)
BOX = spaces.Box(np.float32([[-2.0, 0.0], [-1.0, 5.0]]), np.float32([[2.0, 1.0], [1.0, 6.0]]))


PICTURES = spaces.Dict(
    {"camera": spaces.Box(0, 255, (4, 16, 16, 3), np.uint8), "speed": spaces.Box(0.0, 1.0, (1,))}
)


class Steering(ActorModule):
    """A user's."""

    def __init__(self, observation_space, action_space):
        super().__init__(observation_space, action_space)
        self.layer = torch.nn.Linear(7, 1)

    def act(self, obs, test=False):
        return self.best_actions(obs)[0].numpy()

    def best_actions(self, obs):
        return self.layer(obs).clamp(-1.0, 1.0)


class Halting(Steering):
    best_actions = ActorModule.best_actions

    def act(self, obs, test=False):
        return np.zeros(1, np.float32)


class Branching(Steering):
    def best_actions(self, obs):
        return super().best_actions(obs) if float(obs.sum()) > 0 else obs[:, :1]


def inputs_of(observations):
    walked = [list(tree.walk(obs)) for obs in observations]
    names = [".".join(map(str, ("observation", *path))) for path, _ in walked[0]]
    return {name: np.stack([parts[i][1] for parts in walked]) for i, name in enumerate(names)}


def session_of(policy, path):
    write_onnx(policy, path)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("cls", "obs_space", "act_space", "options"),
    [
        (SquashedGaussianActor, OBS, BOX, {"layer_norm": True}),
        pytest.param(
            *(
                SquashedGaussianActor,
                spaces.Box(-1.0, 1.0, (7,)),
                spaces.Box(-1.0, 1.0, (1,)),
                {"obs_range": 0.0},
            ),
            marks=pytest.mark.long,
        ),
        pytest.param(
            SquashedGaussianActor, PICTURES, BOX, {"hidden_sizes": (32, 16)}, marks=pytest.mark.long
        ),
        pytest.param(
            CategoricalActor, OBS, spaces.Discrete(5, start=2), {}, marks=pytest.mark.long
        ),
        pytest.param(
            *(
                CategoricalActor,
                OBS,
                spaces.MultiDiscrete([3, 4], start=[1, 0]),
                {"layer_norm": True},
            ),
            marks=pytest.mark.long,
        ),
        (IQNActor, PICTURES, spaces.Discrete(3), {"width": 32, "hidden_size": 16}),
        (Steering, spaces.Box(-1.0, 1.0, (7,)), spaces.Box(-1.0, 1.0, (1,)), {}),
    ],
)
def test_its_actions_are_the_policys(cls, obs_space, act_space, options, tmp_path):
    torch.manual_seed(0)
    actor = cls(obs_space, act_space, **options)
    with torch.no_grad():
        for name, values in actor.state_dict().items():  # as if it had been trained
            if name != "behaviour":
                values.add_(
                    0.1 * torch.randn_like(values)
                ) if "rescale" not in name else values.mul_(1.3).add_(0.1)
    obs_space.seed(0)
    observations = [obs_space.sample() for _ in range(200)]
    if isinstance(actor, IQNActor):  # no action is to be always the best one
        seen = {
            name: torch.from_numpy(np.stack([obs[name] for obs in observations]))
            for name in PICTURES
        }
        actor.advantage.bias.data -= actor(seen).mean(dim=0).detach()
    policy = load_policy(written(tmp_path / "p", actor), allow=(__name__,))
    session = session_of(policy, tmp_path / "p.onnx")
    (actions,) = session.run(None, inputs_of(observations))
    expected = np.stack([policy.act(obs) for obs in observations])
    assert actions.shape == (200, *act_space.shape)
    assert np.abs(actions - expected).max() <= (1e-5 if isinstance(act_space, spaces.Box) else 0)
    assert all(act_space.contains(action.astype(act_space.dtype)) for action in actions[:50])
    assert len(np.unique(actions)) > 1


@pytest.mark.parametrize(
    ("cls", "problem"),
    [
        (
            Halting,
            r"a Halting cannot be written as ONNX: give it a method best_actions\(obs\), which "
            r"makes actions",
        ),
        (Branching, "torch cannot write Branching.best_actions as ONNX: "),
    ],
)
def test_an_actor_that_cannot_be_written_is_refused(cls, problem, tmp_path):
    actor = cls(spaces.Box(-1.0, 1.0, (7,)), spaces.Box(-1.0, 1.0, (1,)))
    policy = load_policy(written(tmp_path / "p", actor), allow=(__name__,))
    with pytest.raises(PolicyError, match=problem):
        write_onnx(policy, tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    policy = load_policy(
        written(tmp_path / "p", SquashedGaussianActor(OBS, BOX, hidden_sizes=(8,)))
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match=r'writing ONNX needs the extra "onnx": pip install'
    ):
        write_onnx(policy, tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()
