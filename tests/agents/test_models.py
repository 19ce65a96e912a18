import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import MIXED, box
from kit.refusals import one_line
from torch.testing import assert_close

from tmrl_like.agents.models import EnsembleCritic, SquashedGaussianActor, squashed_log_prob
from tmrl_like.agents.space_layout import action_bounds

ACTIONS = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_never_carries_an_action_out_of_its_bounds(dtype):
    edges = np.random.default_rng(0).uniform(-10, 10, (2, 2000)).astype(dtype)
    space = spaces.Box(edges.min(0), edges.max(0), dtype=dtype)
    center, half = action_bounds(space)
    assert half.dtype == np.float32
    assert space.contains(center + half)
    assert space.contains(center - half)


def test_the_log_density_and_its_gradient_stay_finite_where_tanh_saturates():
    u, zero = torch.tensor([[30.0], [-30.0]], requires_grad=True), torch.zeros(2, 1)
    log_prob = squashed_log_prob(u, zero, zero)
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert_close(u.grad, torch.tensor([[2.0], [-2.0]]))


class OwnForward(SquashedGaussianActor):
    def forward(self, obs):
        return torch.tensor([[0.5, -0.5]]), torch.zeros(1, 2)


def test_a_test_action_is_the_squashed_mean_also_of_a_network_of_a_subclass():
    action = OwnForward(MIXED, ACTIONS).act_(MIXED.sample(), test=True)
    expected = [2.0 * np.tanh(0.5), 5.0 + 5.0 * np.tanh(-0.5)]
    np.testing.assert_allclose(action, expected, rtol=1e-5)
    assert action.dtype == np.float32


FILM = spaces.Dict({"film": spaces.Box(0, 1, (2, 2, 3, 64, 64))})


@pytest.mark.parametrize(
    ("observation_space", "action_space", "place"),
    [
        (spaces.Box(0, 1, (2, 3, 4)), ACTIONS, r"observation space is Box\(0.0, 1.0, \(2, 3, 4\)"),
        (spaces.Tuple((ACTIONS, FILM)), ACTIONS, r"observation space\[1\]\['film'\]"),
        (spaces.Discrete(3, start=1 << 40), ACTIONS, r"observation space is Discrete\(3, start=1"),
        (spaces.Dict({"goal": spaces.Text(9)}), ACTIONS, r"observation space\['goal'\] is Text\("),
        (spaces.Box(0.0, 1.0, (0,)), ACTIONS, "is empty"),
        (MIXED, spaces.Discrete(3), "action space is .* take DiscreteSACAgent with CategoricalAc"),
        (MIXED, box(3.4e38, 2), "action space .* has no finite bounds"),
        (MIXED, box(1.0, 0), "action space .* has no finite bounds; give it entries"),
        (MIXED, box(0.0, 2), "action space .* has no finite bounds"),
        (MIXED, spaces.Box(0, 5, (2,), dtype=np.int64), "action space is .* a Box of floats"),
    ],
)
def test_spaces_it_cannot_learn_from_are_refused_by_name(observation_space, action_space, place):
    with one_line(place):
        SquashedGaussianActor(observation_space, action_space)


def test_options_out_of_range_are_refused_by_name():
    with one_line("dropout is 1.5; expected 0 to below 1"):
        EnsembleCritic(MIXED, ACTIONS, dropout=1.5)
