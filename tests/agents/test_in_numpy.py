"""The shipped actors in numpy act as those in torch do."""

from itertools import product

import msgspec
import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import MIXED, box, picture

from tmrl_like.agents import CategoricalActor, SquashedGaussianActor
from tmrl_like.agents.in_numpy import NumpyGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs.actions import typed_action
from tmrl_like.errors import MissingExtraError, PolicyError
from tmrl_like.policies.network import Network, NetworkSpec
from tmrl_like.policies.probe import PolicyProbe
from tmrl_like.worker.intake import NumpyIntake, TorchIntake
from tmrl_like.worker.slots import PolicySlots

TWINS = pytest.mark.parametrize("cls", [SquashedGaussianActor, CategoricalActor])
DRONE = spaces.Tuple([box(1, 1), box(1, 1), box(0.5, 1), box(0.5, 1), *[box(2, 2)] * 4])
FREE = spaces.Box(-np.inf, np.inf, (2, 2), np.float64)
NESTED = spaces.Tuple((MIXED, FREE, picture(2)))
PICTURES = spaces.Dict(
    {
        "first": picture(4, 64, 64),
        "speed": box(np.inf, 2),
        "second": picture(9, 9, 1),
    }
)
ACTIONS = {
    SquashedGaussianActor: (
        spaces.Box(np.float32([-2, 0.5]), np.float32([2, 0.7])),
        box(1, 1, 2),
    ),
    CategoricalActor: (
        spaces.Discrete(4, start=-1),
        spaces.MultiDiscrete([[2], [5]], start=[[0], [3]]),
    ),
}


def both(cls, obs_space, act_space, **options):
    """Return an actor in torch with random parameters and statistics, and its twin in numpy."""
    torch.manual_seed(0)
    np.random.seed(0)
    obs_space.seed(0)
    actor = cls(obs_space, act_space, **options)
    with torch.no_grad():
        for values in actor.state_dict().values():
            values.add_(0.05 * torch.randn_like(values))
    return actor, actor.in_numpy()


def test_actions_have_the_dtype_of_their_space_as_those_of_other_drivers_have():
    space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    actor, twin = both(SquashedGaussianActor, box(1, 3), space)
    obs = np.zeros(3, np.float32)
    assert {one.act_(obs).dtype for one in (actor, twin)} == {typed_action([0, 0], space).dtype}
    assert twin.act_(obs) in space


@TWINS
@pytest.mark.parametrize(
    ("obs_space", "which", "options"),
    [
        (DRONE, 0, {"hidden_sizes": (64, 64)}),
        (NESTED, 1, {"hidden_sizes": (32, 24, 16), "layer_norm": True}),
        (spaces.MultiDiscrete([5, 1]), 0, {"hidden_sizes": ()}),
        (NESTED, 1, {"hidden_sizes": (16,), "normalize_obs": False, "obs_range": 0.0}),
        (PICTURES, 0, {"hidden_sizes": (8,)}),
        (spaces.Dict({0: box(1, 2), 1: box(1, 3)}), 0, {"hidden_sizes": (8,)}),
        (picture(2, 40, 50, 3), 0, {"hidden_sizes": (8,)}),
    ],
)
def test_both_have_the_same_parameters_and_act_alike_in_another_process_too(
    cls, obs_space, which, options
):
    act_space = ACTIONS[cls][which]
    actor, twin = both(cls, obs_space, act_space, **options)
    assert list(twin.manifest().items()) == list(actor.manifest().items())
    there = Network(msgspec.msgpack.decode(msgspec.msgpack.encode(twin.spec), type=NetworkSpec))
    there.bind(twin.network.parameters)
    for step in range(100):
        actor.average.is_used.fill_(step % 2)
        obs = obs_space.sample()
        there.input[:] = twin.flatten(obs)
        expected, action = actor.act_(obs, test=True), twin.act_(obs, test=True)
        assert np.abs(action - expected).max() < 1e-5
        assert there.act(test=True).tolist() == action.tolist()
        assert type(action) is type(expected)
        assert act_space.contains(action)
    kept = action.copy()
    twin.act_(obs_space.sample())
    assert (kept == action).all()  # the array belongs to the caller
    actor.load_weights(cls(obs_space, act_space, **options).weights())
    assert twin.weights() == actor.weights()  # both share one memory


class Ones:
    """Draws 1 as every random number."""

    def standard_normal(self, size, dtype):
        return np.ones(size, dtype)


def test_exploring_adds_noise_of_the_standard_deviation_within_its_bounds():
    actor = NumpyGaussianActor(DRONE, box(2, 1), hidden_sizes=())
    actor.network.random, head = Ones(), actor.network.parameters
    head["head.weight"][:] = 0.0
    for log_std, within in ((-3.0, -3.0), (100.0, 2.0), (-100.0, -10.0)):
        head["head.bias"][:] = 0.5, log_std
        expected = [2 * np.tanh(0.5 + np.exp(within))]
        np.testing.assert_allclose(actor.act_(DRONE.sample()), expected, rtol=1e-6)


@pytest.mark.parametrize("is_torch", [True, False])
def test_noise_over_time_is_a_new_sequence_in_each_episode(is_torch):
    actor = both(SquashedGaussianActor, DRONE, box(2, 2), noise_beta=2.0)[not is_torch]
    obs = DRONE.sample()
    drawn = [actor.act_(obs) for _ in range(20)]
    actor.reset()
    assert abs(actor.act_(obs) - drawn[-1]).max() > 3 * abs(np.diff(drawn, axis=0)).max() > 0.0


@pytest.mark.parametrize("is_torch", [True, False])
def test_another_policy_goes_on_with_the_noise_of_the_one_before(is_torch, tmp_path):
    pair = both(SquashedGaussianActor, DRONE, box(2, 2), noise_beta=2.0)
    actor, obs = pair[not is_torch], DRONE.sample()
    slots, probe = PolicySlots(tmp_path, actor.manifest(), 12), PolicyProbe(DRONE, box(2, 2))
    make = partial(type(actor), DRONE, box(2, 2), noise_beta=2.0)
    intake = TorchIntake(slots, probe, make) if is_torch else NumpyIntake(slots, probe, actor, make)
    before = actor.act_(obs)
    slots.slots[1].data[:] = actor.weights().data
    slots.publish(1, 1, 0.0, 0.0)
    intake.on_published()
    other = intake.take(actor).actor
    assert other is not actor
    assert np.allclose(other.act_(obs), before, atol=0.2)


@TWINS
@pytest.mark.parametrize("is_torch", [True, False])
def test_no_action_comes_of_what_is_not_finite(cls, is_torch):
    for space in ACTIONS[cls]:
        actor = both(cls, box(np.inf, 3), space)[not is_torch]
        for bad, test in product((np.nan, np.inf, -np.inf), (True, False)):
            action = actor.act_(np.array([0.0, bad, 1.0], np.float32), test)
            assert np.isnan(action).all()
            assert np.shape(action) == space.shape


def test_weights_that_do_not_fit_change_nothing(tmp_path):
    small, large = (NumpyGaussianActor(DRONE, box(2, 2), hidden_sizes=(n,)) for n in (8, 9))
    before = small.weights()
    large.save(tmp_path / "policy")
    misfit = r"do not fit SquashedGaussianActor: hidden.0.weight is \(9, 12\) instead of \(8, 12\)"
    with pytest.raises(PolicyError, match=rf"policy: weights {misfit}"):
        small.load(tmp_path / "policy")
    assert small.weights() == before


@TWINS
def test_another_device_is_torchs_and_without_torch_refused(cls, monkeypatch):
    _, twin = both(cls, DRONE, ACTIONS[cls][0], layer_norm=True)
    assert twin.to_device("cpu") is twin
    there, obs = twin.to_device("cpu:0"), DRONE.sample()
    assert there.in_numpy() is None
    assert np.allclose(there.act_(obs, test=True), twin.act_(obs, test=True), atol=1e-6)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs torch: pip install torch"):
        twin.to_device("cuda")


def test_a_subclass_acts_in_its_own_way():
    class Own(SquashedGaussianActor):
        def forward(self, obs):
            mean, log_std = super().forward(obs)
            return mean / 2, log_std

    assert Own(DRONE, box(2, 2)).in_numpy() is None
