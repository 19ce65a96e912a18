"""Acting with a policy file."""

import functools
import json

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box, picture
from kit.fakes import LinearActor
from kit.policies import written
from kit.pythons import python
from kit.refusals import one_line

from tmrl_like import load_policy
from tmrl_like.agents import CategoricalActor, IQNActor, SquashedGaussianActor, in_numpy
from tmrl_like.agents.images import ConvolutionEncoder
from tmrl_like.envs import GenericGymEnv
from tmrl_like.envs.drone import TargetInView
from tmrl_like.envs.robot import TargetUpClose
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.policies.policy_file import Code
from tmrl_like.wire.spaces import Box as SmallBox

OBS, ACT = box(1, 3), box(2, 2)
HERE = (__name__,)
NEAR = {"rtol": 1e-5, "atol": 1e-6}


def doubled(obs):
    return 2 * obs


class Own(SquashedGaussianActor):
    """A user's own actor."""

    def __init__(self, observation_space, action_space, hidden_sizes):
        super().__init__(observation_space, action_space, hidden_sizes=hidden_sizes[:1])


@pytest.fixture
def actor():
    return SquashedGaussianActor(OBS, ACT, hidden_sizes=(8, 8), layer_norm=True, noise_beta=1.0)


PICTURES = spaces.Tuple((picture(1, 16, 16), OBS))
ENCODER = functools.partial(ConvolutionEncoder, channels=(4, 4, 4))
ONE_OF_FOUR = spaces.Discrete(4, start=2)


@pytest.mark.parametrize(
    ("actor", "kind"),
    [
        (SquashedGaussianActor(PICTURES, ACT, hidden_sizes=(8,)), in_numpy.NumpyGaussianActor),
        (
            CategoricalActor(spaces.Tuple((OBS, ONE_OF_FOUR)), ONE_OF_FOUR),
            in_numpy.NumpyCategoricalActor,
        ),
        (IQNActor(PICTURES, ONE_OF_FOUR, width=16, picture_encoder=ENCODER), IQNActor),
    ],
)
def test_a_policy_acts_as_the_actor_that_was_stored(actor, kind, tmp_path):
    policy = load_policy(written(tmp_path / "p", actor, version=7, run="drone"))
    assert type(policy.actor) is kind
    assert (policy.version, policy.metadata.run) == (7, "drone")
    assert policy.observation_space == actor.observation_space
    assert policy.action_space == actor.action_space
    for _ in range(20):
        obs = actor.observation_space.sample()
        np.testing.assert_allclose(policy.act(obs), actor.act_(obs, test=True), **NEAR)
    assert policy.action_space.contains(policy.act(obs, test=False))


ACT_ALONE = """
import sys
sys.modules["torch"] = None
import numpy as np
from tmrl_like import load_policy
print(load_policy(sys.argv[1]).act(np.float32([0.1, 0.2, 0.3])).tolist())
"""


def test_a_policy_of_an_actor_that_ships_is_loaded_without_torch(actor, tmp_path):
    printed, _ = python("-c", ACT_ALONE, written(tmp_path / "p", actor))
    np.testing.assert_allclose(
        json.loads(printed), actor.act_(np.float32([0.1, 0.2, 0.3]), test=True), **NEAR
    )


FROM_POSITION = spaces.Tuple([box(1, 2)] * 4)


@pytest.mark.parametrize(
    ("space", "view", "allow"),
    [
        (OBS, functools.partial(doubled), HERE),
        (FROM_POSITION, TargetInView(), ()),  # what ships needs no permission
        (FROM_POSITION, TargetUpClose(), ()),
    ],
)
def test_what_is_in_front_of_the_actor_is_loaded_too_where_it_is_allowed(
    space, view, allow, tmp_path
):
    actor = SquashedGaussianActor(space, ACT, hidden_sizes=(8,))
    policy = load_policy(written(tmp_path / "p", actor, view), allow=allow)
    obs = space.sample()
    np.testing.assert_allclose(policy.act(obs), actor.act_(view(obs), test=True), **NEAR)


def test_an_actor_of_the_users_is_loaded_where_its_package_is_allowed(tmp_path):
    path = written(tmp_path / "p", Own(OBS, ACT, hidden_sizes=(8, 1 << 20)))
    policy, obs = load_policy(path, allow=HERE), OBS.sample()
    assert isinstance(policy.actor, Own)
    assert not policy.actor.training  # so that dropout does nothing
    assert not np.array_equal(policy.act(obs, test=False), policy.act(obs, test=False))
    with pytest.raises(
        PolicyError,
        match=rf"it names {__name__}.Own, and code of {__name__} is not imported for a fil",
    ):
        load_policy(path)
    with pytest.raises(ConfigError, match=r"allow is 'my_arm'; expected a list of packages"):
        load_policy(path, allow="my_arm")


def test_what_the_file_could_not_say_may_be_given(tmp_path):
    actor = LinearActor(OBS, box(1, 1))
    path = written(tmp_path / "p", actor, lambda obs: obs, actor="its argument table is an array")
    with pytest.raises(
        PolicyError,
        match=r"the actor could not be written down \(its argument table .*give load_policy",
    ):
        load_policy(path)
    with pytest.raises(PolicyError, match=r"the obs_preprocessor could not be written down"):
        load_policy(path, actor=LinearActor)
    assert load_policy(path, actor=LinearActor, obs_preprocessor=doubled).act(
        OBS.sample()
    ).shape == (1,)


SHIPPED = "tmrl_like.agents.SquashedGaussianActor"


@pytest.mark.parametrize(
    ("card", "message"),
    [
        (
            {"actor": Code("tmrl_like.agents.images.PictureEncoder")},
            "PictureEncoder is no actor: expected a subclass of ActorModule",
        ),
        (
            {"actor": Code(SHIPPED, {"widths": [1]})},
            "cannot be what it says: .*widths",
        ),
        (
            {"observation_space": SmallBox((1,), "uint8", (0,), (300,))},
            "cannot be what it says: OverflowError",
        ),
        (
            {"actor": Code(SHIPPED, {"hidden_sizes": [100, 100]})},
            r"hidden_sizes is \[100, 100\], which takes 10,200 parameters or more; it holds \d+$",
        ),
        (
            {"observation_space": "the space Text is of a kind"},
            "the space could not be written down",
        ),
    ],
)
def test_a_file_that_cannot_be_what_it_says_is_refused_in_one_line(card, message, actor, tmp_path):
    with one_line(message, PolicyError) as raised:
        load_policy(written(tmp_path / "p", actor, **card))
    assert str(tmp_path / "p") in str(raised.value)


def called(path, **arguments):
    """What a card says in place of an argument that is a class or function."""
    return {"class_path": path, "init_args": arguments}


def running(path, command):
    """A part that runs a command when it is made: `path` is that of GenericGymEnv."""
    run = {"env_cls": "subprocess:check_call", "args": command}
    return called(path, id="Pendulum-v1", gym_kwargs=run)


ENV, Imported = "tmrl_like.envs.GenericGymEnv", GenericGymEnv


@pytest.mark.parametrize("allow", [(), HERE])
@pytest.mark.parametrize("part", ["actor", "obs_preprocessor"])
@pytest.mark.parametrize(
    "code",
    [
        lambda command: running(ENV, command),
        lambda command: running(f"{__name__}.Imported", command),
        lambda command: called("tmrl_like.agents.IQNActor", picture_encoder=running(ENV, command)),
        lambda command: called("tmrl_like.agents.images.torch.hub.load", repo_or_dir=command[-1]),
        lambda command: called("not.even.imported"),
    ],
)
def test_a_file_runs_no_command(part, code, allow, actor, tmp_path):
    ran = tmp_path / "ran"
    said = code(["touch", str(ran)])
    path = written(tmp_path / "p", actor, **{part: Code(**said)})
    with pytest.raises(PolicyError, match=r"it names .*, and code of .* unless you allow it"):
        load_policy(path, allow=allow)
    assert not ran.exists()


def test_a_policy_that_is_not_finite_and_weights_that_say_nothing_are_refused(actor, tmp_path):
    actor.save(tmp_path / "weights")
    with pytest.raises(PolicyError, match="it holds weights, and does not say of what"):
        load_policy(tmp_path / "weights")
    torch.nn.init.constant_(actor.head.bias, float("nan"))
    with pytest.raises(PolicyError, match=r"head\.bias holds values that are not finite"):
        load_policy(written(tmp_path / "p", actor))


@pytest.mark.parametrize(
    ("obs", "said"),
    [
        ([0.1, float("nan"), 0.3], "the policy's action is not finite: .*nan.*; do not send it"),
        ([0.1, 0.2], r"not in its observation space: expected Box\(.*\), got float32 \(2,\)"),
    ],
)
def test_no_action_comes_of_an_observation_from_which_nothing_follows(actor, tmp_path, obs, said):
    policy = load_policy(written(tmp_path / "p", actor))
    with pytest.raises(PolicyError, match=said):
        policy.act(np.float32(obs))
