"""CrossQ against slow references, its compiled step against its page, and the policy that it
publishes.
"""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.learners import assert_same, batch_of, small, train
from test_as_before import BOX, OBS

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.batch_norm import BatchNormCritic, BatchNormMLP, fold
from tmrl_like.agents.crossq import CrossQOptions
from tmrl_like.errors import ConfigError, PolicyError

ROWS = 32
RATES = {"lr_actor": 3e-4, "lr_critic": 3e-4, "lr_entropy": 3e-4}
CRITIC = partial(EnsembleCritic, layer_norm=False)


def crossq(acceleration="off", **options):
    return small(CrossQAgent, (OBS, BOX), critic=CRITIC, acceleration=acceleration, **options)


def shaken(network):
    """The same network with normalisations that are not as at the start."""
    with torch.no_grad():
        for gain, (mean, var) in zip(network.gains, network.running(), strict=True):
            gain.uniform_(0.5, 2.0)
            mean.normal_()
            var.uniform_(0.1, 3.0)
        for offset in network.offsets:
            offset.normal_()
        network.bias.normal_()
    return network


def by_hand(network, n, x_BI, how):
    """Network n's outputs in float64, one normalisation after the other, and the batch's statistics
    at each.

    How it normalises: by the "batch", "running" statistics, or "renormed".
    """
    seen, x = [], np.asarray(x_BI, np.float64)
    for i, running in enumerate(network.running()):
        running_mean, running_var = (part[n, 0].double().numpy() for part in running)
        if i:
            x = x @ network.weights[i - 1][n].detach().numpy()
        mean, var = x.mean(axis=0), x.var(axis=0)
        seen.append((mean, var))
        std, running_std = np.sqrt(var + 1e-3), np.sqrt(running_var + 1e-3)
        x = (x - running_mean) / running_std if how == "running" else (x - mean) / std
        if how == "renormed":
            x = x * np.clip(std / running_std, 1 / 3, 3) + np.clip(
                (mean - running_mean) / running_std, -5, 5
            )
        x = x * network.gains[i][n, 0].detach().numpy()
        if i:
            x = np.maximum(x + network.offsets[i - 1][n, 0].detach().numpy(), 0.0)
    return x @ network.weights[-1][n].detach().numpy() + network.bias[n, 0].detach().numpy(), seen


@pytest.mark.parametrize(("batches", "how"), [(999, "batch"), (1000, "renormed")])
def test_a_network_in_training_normalises_by_its_batch_and_moves_what_is_running(batches, how):
    torch.manual_seed(1)
    network = shaken(BatchNormMLP(2, [7, 12, 9], 4))
    network.count.fill_(batches)
    before = copy.deepcopy(network)
    x_BI = torch.randn(ROWS, 7) * 3 + 5
    got_NBO = network(x_BI).detach().numpy()
    for n in range(2):
        expected_BO, seen = by_hand(before, n, x_BI, how)
        np.testing.assert_allclose(got_NBO[n], expected_BO, rtol=1e-4, atol=1e-4)
        for now, old, of_batch in zip(network.running(), before.running(), seen, strict=True):
            for value, start, new in zip(now, old, of_batch, strict=True):
                np.testing.assert_allclose(
                    value[n, 0], 0.99 * start[n, 0].numpy() + 0.01 * new, rtol=1e-4, atol=1e-6
                )
    assert network.count == batches + 1


def test_plain_networks_do_what_those_in_training_do_by_running_statistics():
    torch.manual_seed(4)
    made = crossq()
    seen = batch_of((OBS, BOX), 5)
    for normed, plain in ((made.actor, made.actor_ema), (made.critic, made.critic_target)):
        fold(shaken(normed.network), plain)
    features_BF = made.actor_ema.encoder(seen.obs)
    outputs_BO, _ = by_hand(made.actor.network, 0, features_BF, "running")
    mean_BA, log_std_BA = made.actor_ema(seen.obs)
    np.testing.assert_allclose(mean_BA, outputs_BO[:, :3], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(log_std_BA, outputs_BO[:, 3:].clip(-10.0, 2.0), rtol=1e-4, atol=1e-4)
    x_BI = torch.cat((features_BF, made.critic.rescale_act(seen.act)), 1)
    q_NB = made.critic_target(seen.obs, seen.act)
    for n in range(2):
        expected_B1, _ = by_hand(made.critic.network, n, x_BI, "running")
        np.testing.assert_allclose(q_NB[n], expected_B1[:, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_each_step_folds_what_it_has_changed_and_the_same_actor_is_published(acceleration):
    made = crossq(acceleration, policy_delay=2)
    published, before = made.get_actor(), made.get_actor().weights()
    for step in (1, 2):
        train(made, 1, first=step)
        for normed, plain in ((made.actor, made.actor_ema), (made.critic, made.critic_target)):
            expected = copy.deepcopy(plain)
            fold(normed.network, expected)
            assert all(map(torch.equal, plain.parameters(), expected.parameters()))
        assert (published.weights() != before) is (step == 2)
    assert made.get_actor() is published
    obs = OBS.sample()
    np.testing.assert_allclose(
        published.in_numpy().act_(obs, True), published.act_(obs, True), rtol=1e-4
    )


@pytest.mark.parametrize("smoothness", [0.0, 3.0])
def test_a_hundred_compiled_steps_give_the_losses_and_parameters_of_the_page(
    monkeypatch, smoothness
):
    """With options that are others than those in `test_as_before`."""
    monkeypatch.setattr(BatchNormMLP, "renorm_after", 30)
    options = RATES | {
        "scale_rewards": True,
        "learn_entropy_coef": False,
        "optimizer": "adamw",
        "weight_decay": 0.1,
    }
    options["smoothness"] = smoothness
    page, compiled = crossq("off", **options), crossq("auto", **options)
    assert (page.compiled is None, compiled.compiled is None) == (True, False)
    for first, said in ((0, {}), (50, {"discount": torch.full((ROWS,), 0.9)})):
        for ours, theirs in zip(
            train(compiled, 50, first, **said), train(page, 50, first, **said), strict=True
        ):
            assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-3)
    assert_same(compiled, page, rtol=2e-3, atol=2e-3)


def test_what_may_change_changes_and_averages_are_not_offered():
    made = crossq()
    made.tune(lr_actor=1e-3, gamma=0.9, target_entropy=-1.0)
    assert (made.lr_actor, made.gamma, made.target_entropy) == (1e-3, 0.9, -1.0)
    for name in ("polyak", "actor_polyak"):
        with pytest.raises(ConfigError, match=f"{name} of CrossQAgent cannot change"):
            made.tune(**{name: 0.5})
    for name in ("polyak", "actor_polyak", "critics_in_target"):
        with pytest.raises(TypeError, match=name):
            CrossQOptions(**{name: 1})


def test_it_is_made_as_the_robot_s_was():
    made = CrossQAgent(OBS, BOX, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(8, 7)))
    assert made.target_entropy == -1.5  # half a nat for each dimension
    # as wide as the actor
    assert [weight.shape[-1] for weight in made.critic.network.weights] == [8, 7, 1]


def test_a_subclass_trains_by_the_page():
    class Mine(CrossQAgent):
        pass

    assert Mine(OBS, BOX).compiled is None


def test_a_policy_of_another_training_is_refused():
    made = crossq()
    with pytest.raises(PolicyError, match="init_policy"):
        made.start_from(made.get_actor().weights())


@pytest.mark.parametrize(
    ("obs", "nets", "said"),
    [
        (OBS, {"actor_cls": partial(SquashedGaussianActor, layer_norm=True)}, "actor_cls"),
        (OBS, {"critic_cls": partial(EnsembleCritic, layer_norm=True)}, "critic_cls"),
        (OBS, {"critic_cls": partial(EnsembleCritic, layer_norm=False, dropout=0.1)}, "critic_cls"),
        (OBS, {"critic_cls": BatchNormCritic}, "critic_cls"),
        (spaces.Box(0, 255, (3, 16, 16), np.uint8), {}, "pictures"),
    ],
)
def test_what_it_cannot_train_is_refused(obs, nets, said):
    with pytest.raises(ConfigError, match=said):
        CrossQAgent(obs, BOX, **nets)


def test_a_value_that_a_reward_tells_is_learnt():
    """One step to the end: the value of an action is its reward, 1 for the first action at its
    largest.
    """
    obs, act = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))
    made = small(
        CrossQAgent, (obs, act), critic=CRITIC, entropy_coef=0.1, lr_actor=3e-3, lr_critic=3e-3
    )
    for step in range(300):
        batch = batch_of((obs, act), step, terminated=torch.ones(ROWS))
        made.train(batch._replace(rew=batch.act[:, 0].clone()))
    assert made.get_actor().act(torch.zeros(1, 2), test=True)[0] > 0.8
