"""XQC against slow references, its compiled step against its page, and the policy that it publishes."""

import copy
import math
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.agents.batch_norm import BatchNormMLP, fold
from tmrl_like.agents.xqc import CrossQAgent, XQCAgent, critic_loss, discount_for, target_distribution, values_of
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.trainer.snapshot import load_object_state, object_state
from tmrl_like.types import Batch

ROWS = 32
OBS = spaces.Tuple((spaces.Box(-1.0, 1.0, (5,)), spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)))
BOX = spaces.Box(np.float32([-2.0, 0.0, -1.0]), np.float32([2.0, 1.0, 1.0]))


RENORMED = partial(CrossQAgent, renorm_after=3, lr_actor=3e-4, lr_critic=3e-4)


def agent(acceleration="off", cls=XQCAgent, **options):
    torch.manual_seed(0)
    actor = partial(SquashedGaussianActor, hidden_sizes=(24, 16), normalize_obs=False)
    return cls(OBS, BOX, actor_cls=actor, critic_sizes=(20, 24), acceleration=acceleration, **options)


def batch(seed, **extra):
    rng = np.random.default_rng(seed)
    for part in (OBS, BOX):
        part.seed(seed)

    def observations():
        samples = [OBS.sample() for _ in range(ROWS)]
        return tuple(torch.from_numpy(np.stack(leaf)) for leaf in zip(*samples, strict=True))

    act = torch.from_numpy(np.stack([BOX.sample() for _ in range(ROWS)]))
    rew = torch.from_numpy(rng.standard_normal(ROWS).astype(np.float32))
    terminated = torch.from_numpy((rng.random(ROWS) < 0.2).astype(np.float32))
    return Batch(observations(), act, rew, observations(), terminated, torch.zeros(ROWS), **extra)


def shaken(network):
    """The same network with normalisations that are not as at the start."""
    with torch.no_grad():
        for norm in network.norms:
            norm.gain.uniform_(0.5, 2.0)
            norm.offset.normal_()
            norm.mean.normal_()
            norm.var.uniform_(0.1, 3.0)
        network.bias.normal_()
    return network


def by_hand(network, n, x_BI, training):
    """Network n's outputs, one normalisation after the other, and the statistics of each."""
    seen = []

    def normalised(norm, x):
        mean = x.mean(axis=0) if training else norm.mean[n, 0].numpy()
        var = x.var(axis=0) if training else norm.var[n, 0].numpy()
        seen.append((mean, var))
        gain, offset = norm.gain[n, 0].detach().numpy(), norm.offset[n, 0].detach().numpy()
        return gain * (x - mean) / np.sqrt(var + 1e-3) + offset

    first, *norms = network.norms
    x = normalised(first, np.asarray(x_BI, np.float64))
    *hidden, head = (weight[n].detach().numpy() for weight in network.weights)
    for weight, norm in zip(hidden, norms, strict=True):
        x = np.maximum(normalised(norm, x @ weight), 0.0)
    return x @ head + network.bias[n, 0].detach().numpy(), seen


@pytest.mark.parametrize("training", [True, False])
def test_a_network_normalises_its_inputs_and_each_hidden_layer(training):
    torch.manual_seed(1)
    network = shaken(BatchNormMLP(2, 7, (12, 9), 4))
    before = copy.deepcopy(network)
    x_BI = torch.randn(ROWS, 7) * 3 + 5
    got_NBO = network(x_BI, training).detach().numpy()
    for n in range(2):
        expected_BO, seen = by_hand(before, n, x_BI, training)
        np.testing.assert_allclose(got_NBO[n], expected_BO, rtol=1e-4, atol=1e-4)
        for norm, old, (mean, var) in zip(network.norms, before.norms, seen, strict=True):
            share = 0.01 if training else 0.0
            np.testing.assert_allclose(norm.mean[n, 0], (1 - share) * old.mean[n, 0].numpy() + share * mean, rtol=1e-4)
            np.testing.assert_allclose(norm.var[n, 0], (1 - share) * old.var[n, 0].numpy() + share * var, rtol=1e-4)


def test_batch_renormalisation_brings_what_training_sees_near_to_what_acting_sees():
    torch.manual_seed(8)
    network = shaken(BatchNormMLP(1, 7, (12,), 4, renorm_after=1))
    before = copy.deepcopy(network)
    x_BI = torch.randn(ROWS, 7) * 2 + 1
    first, second = (network(x_BI, training=True).detach()[0] for _ in range(2))
    np.testing.assert_allclose(first, by_hand(before, 0, x_BI, training=True)[0], rtol=1e-4, atol=1e-4)
    before = copy.deepcopy(network)
    norm, x = before.norms[0], x_BI.numpy()
    running = np.sqrt(norm.var[0, 0].numpy() + 1e-3)
    r = np.clip(np.sqrt(x.var(axis=0) + 1e-3) / running, 1 / 3, 3)
    d = np.clip((x.mean(axis=0) - norm.mean[0, 0].numpy()) / running, -5, 5)
    normed = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-3) * r + d
    expected = norm.gain[0, 0].detach().numpy() * normed + norm.offset[0, 0].numpy()
    np.testing.assert_allclose(before.norms[0](x_BI[None], training=True)[0].detach(), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first, second, atol=1e-3)


def test_values_of_now_depend_on_what_follows_them_in_the_joint_pass():
    torch.manual_seed(2)
    network = BatchNormMLP(2, 4, (8,), 3)
    now, following = torch.randn(ROWS, 4), torch.randn(ROWS, 4) + 4.0
    joint = network(torch.cat((now, following)), training=True)[:, :ROWS]
    assert not torch.allclose(joint, network(now, training=True), atol=0.1)


def projected(rew, terminated, prob_K, cost, gamma, bins_K):
    """The target of one transition, bin by bin, in float64."""
    to_K = np.zeros(len(bins_K))
    for z, p in zip(bins_K, prob_K, strict=True):
        moved = min(max(rew + gamma * (1.0 - terminated) * (z - cost), bins_K[0]), bins_K[-1])
        for k, bin_value in enumerate(bins_K):
            to_K[k] += p * max(1.0 - abs(moved - bin_value) / (bins_K[1] - bins_K[0]), 0.0)
    return to_K


def test_the_target_is_the_projected_distribution_of_the_critic_with_the_smallest_value():
    torch.manual_seed(3)
    bins_K = torch.linspace(-2.0, 2.0, 11)
    logits_NBK, log_prob_B, rew_B = torch.randn(2, ROWS, 11) * 2, torch.randn(ROWS), torch.randn(ROWS) * 3
    terminated_B = (torch.rand(ROWS) < 0.3).float()
    rew_B[0], terminated_B[0] = 2.0, 1.0  # all of it in the last bin
    got_BK = target_distribution(rew_B, terminated_B, logits_NBK, log_prob_B, 0.3, 0.9, bins_K)
    prob_NBK = logits_NBK.double().softmax(-1).numpy()
    bins = np.linspace(-2.0, 2.0, 11)
    for b in range(ROWS):
        least = min((0, 1), key=lambda n, b=b: prob_NBK[n, b] @ bins)
        expected_K = projected(
            float(rew_B[b]), float(terminated_B[b]), prob_NBK[least, b], 0.3 * float(log_prob_B[b]), 0.9, bins
        )
        np.testing.assert_allclose(got_BK[b], expected_K, atol=1e-5)
    np.testing.assert_allclose(got_BK.sum(-1), 1.0, rtol=1e-5)
    assert got_BK[0, -1] == 1.0


def test_cross_entropy_is_least_where_critics_say_the_target():
    target_BK = torch.tensor([[0.1, 0.6, 0.3]])
    right_NBK = target_BK.log().expand(2, 1, 3)
    entropy = -sum(p * math.log(p) for p in (0.1, 0.6, 0.3))
    assert critic_loss(right_NBK, target_BK).item() == pytest.approx(2 * entropy, rel=1e-5)
    assert critic_loss(right_NBK + torch.tensor([0.1, 0.0, 0.0]), target_BK) > 2 * entropy
    assert values_of(right_NBK, torch.tensor([-1.0, 0.0, 1.0]))[0, 0].item() == pytest.approx(0.2)


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_weights_are_on_the_unit_sphere_after_each_step(acceleration):
    made = agent(acceleration)
    for i in range(4):
        made.train(batch(i))
        for network in (made.actor, made.critic):
            for weight in network.weights:
                np.testing.assert_allclose(weight.detach().norm(dim=1), 1.0, rtol=1e-5)


def test_the_published_actor_does_what_the_one_in_training_does_without_batch_statistics():
    torch.manual_seed(4)
    made = agent()
    shaken(made.actor)
    obs = batch(5).obs
    published = made.get_actor()
    mean_BA, log_std_BA = published(obs)
    expected_BO = made.actor(made.encoder(obs), training=False)[0].detach()
    expected_mean, expected_log_std = expected_BO.chunk(2, dim=-1)
    torch.testing.assert_close(mean_BA, expected_mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(log_std_BA, expected_log_std.clamp(-10.0, 2.0), rtol=1e-4, atol=1e-4)
    twin = published.in_numpy()
    one = tuple(leaf[0].numpy() for leaf in obs)
    np.testing.assert_allclose(
        twin.act(one, test=True), published.act(tuple(leaf[:1] for leaf in obs), test=True), rtol=1e-4
    )


def test_the_published_actor_is_always_the_same_module_and_changes_with_training():
    made = agent(policy_delay=1)
    published = made.get_actor()
    before = published.weights()
    made.train(batch(6))
    assert made.get_actor() is published
    assert any(
        not np.array_equal(one, other)
        for one, other in zip(before.arrays().values(), published.weights().arrays().values(), strict=True)
    )


def test_a_network_of_other_widths_cannot_be_folded_into():
    with pytest.raises((RuntimeError, ValueError)):
        fold(BatchNormMLP(1, 10, (24, 16), 6), SquashedGaussianActor(OBS, BOX, hidden_sizes=(24,), normalize_obs=False))


@pytest.mark.parametrize(
    ("cls", "discount"),
    [
        pytest.param(XQCAgent, False, id="xqc"),
        pytest.param(XQCAgent, True, id="xqc, n steps"),
        pytest.param(partial(XQCAgent, polyak=0.0, renorm_after=3), False, id="xqc without target"),
        pytest.param(RENORMED, False, id="crossq"),
        pytest.param(partial(RENORMED, polyak=0.9), False, id="crossq with target"),
    ],
)
def test_the_compiled_step_is_the_pages(cls, discount):
    page, compiled = agent("off", cls), agent("auto", cls)
    assert compiled.compiled is not None
    for i in range(7):
        extra = {"discount": torch.full((ROWS,), 0.9)} if discount else {}
        said = []
        for made in (page, compiled):
            torch.manual_seed(100 + i)
            said.append({name: float(value) for name, value in made.train(batch(i, **extra)).items()})
        assert said[0] == pytest.approx(said[1], rel=1e-3, abs=1e-4)
    for name in ("actor", "critic", "critic_target", "temperature"):
        ours, theirs = getattr(compiled, name).state_dict(), getattr(page, name).state_dict()
        for key, value in theirs.items():
            np.testing.assert_allclose(ours[key], value, rtol=1e-3, atol=2e-4, err_msg=f"{name} {key}")


def test_a_copy_of_a_compiled_agent_trains_on_its_own():
    made = agent("auto")
    made.train(batch(0))
    twin = copy.deepcopy(made)
    before = {key: value.clone() for key, value in made.critic.state_dict().items()}
    twin.train(batch(1))
    assert all(torch.equal(value, before[key]) for key, value in made.critic.state_dict().items())
    assert not torch.equal(twin.critic.weights[0], made.critic.weights[0])


@pytest.mark.parametrize("cls", [XQCAgent, CrossQAgent])
def test_an_agent_goes_on_from_its_state(cls):
    made, resumed = agent(cls=cls), agent(cls=cls)
    for i in range(3):
        made.train(batch(i))
    load_object_state(resumed, copy.deepcopy(object_state(made)))
    for one in (made, resumed):
        torch.manual_seed(9)
        for i in range(3, 6):
            one.train(batch(i))
    ours, theirs = resumed.get_actor().state_dict(), made.get_actor().state_dict()
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())
    assert all(torch.equal(one, other) for one, other in zip(resumed.critic.weights, made.critic.weights, strict=True))


def test_a_policy_of_another_training_is_refused():
    made = agent()
    with pytest.raises(PolicyError, match="init_policy"):
        made.start_from(made.get_actor().weights())


def test_the_discount_follows_from_the_length_of_episodes():
    assert [discount_for(steps) for steps in (10, 200, 1000, 5000)] == pytest.approx([0.95, 0.975, 0.995, 0.995])


def test_a_value_that_a_reward_tells_is_learnt():
    """One step to the end: the value of an action is its reward, 1 for the first action at its largest."""
    space = spaces.Box(-1.0, 1.0, (1,))
    obs = spaces.Box(-1.0, 1.0, (2,))
    torch.manual_seed(7)
    actor = partial(SquashedGaussianActor, hidden_sizes=(32, 32), normalize_obs=False)
    made = XQCAgent(obs, space, actor_cls=actor, critic_sizes=(32, 32), policy_delay=1, lr_actor=3e-3, lr_critic=3e-3)
    for _ in range(300):
        seen, act = torch.rand(64, 2) * 2 - 1, torch.rand(64, 1) * 2 - 1
        made.train(Batch(seen, act, act[:, 0].clone(), seen, torch.ones(64), torch.zeros(64)))
    assert made.get_actor().act(torch.zeros(1, 2), test=True)[0] > 0.8


@pytest.mark.parametrize(
    ("nets", "said"),
    [({"layer_norm": True, "normalize_obs": False}, "layer_norm"), ({"normalize_obs": True}, "normalize_obs")],
)
def test_an_actor_with_a_normalisation_of_its_own_is_refused(nets, said):
    with pytest.raises(ConfigError, match=said):
        XQCAgent(OBS, BOX, actor_cls=partial(SquashedGaussianActor, **nets))
