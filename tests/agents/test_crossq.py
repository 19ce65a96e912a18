"""CrossQ against slow references, its compiled step against its page, and the policy that it publishes."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like.agents import CrossQAgent, EnsembleCritic, SquashedGaussianActor
from tmrl_like.agents.batch_norm import BatchNormCritic, BatchNormMLP, fold, renormalise
from tmrl_like.agents.crossq import CrossQOptions
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.trainer.snapshot import load_object_state, object_state
from tmrl_like.types import Batch

ROWS = 32
OBS = spaces.Tuple((spaces.Box(-1.0, 1.0, (5,)), spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)))
BOX = spaces.Box(np.float32([-2.0, 0.0, -1.0]), np.float32([2.0, 1.0, 1.0]))
RATES = {"lr_actor": 3e-4, "lr_critic": 3e-4, "lr_entropy": 3e-4}
NETWORKS = "actor", "actor_ema", "critic", "critic_target", "temperature"


def agent(acceleration="off", **options):
    torch.manual_seed(0)
    actor = partial(SquashedGaussianActor, hidden_sizes=(24, 16))
    critic = partial(EnsembleCritic, hidden_sizes=(20, 24), layer_norm=False)
    return CrossQAgent(OBS, BOX, actor_cls=actor, critic_cls=critic, acceleration=acceleration, **options)


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


def states(agent):
    return {
        f"{name} {key}": value.clone() for name in NETWORKS for key, value in getattr(agent, name).state_dict().items()
    }


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
    """Network n's outputs in float64, one normalisation after the other, and the batch's statistics at each.

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
            x = x * np.clip(std / running_std, 1 / 3, 3) + np.clip((mean - running_mean) / running_std, -5, 5)
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
                np.testing.assert_allclose(value[n, 0], 0.99 * start[n, 0].numpy() + 0.01 * new, rtol=1e-4, atol=1e-6)
    assert network.count == batches + 1


def test_no_gradient_flows_through_what_renormalises():
    torch.manual_seed(2)
    x_NBH, other = (torch.randn(1, 8, 3).double() for _ in range(2))
    running_mean, running_var = torch.randn(1, 1, 3).double(), torch.rand(1, 1, 3).double() + 0.5
    r = ((x_NBH.var(1, correction=0, keepdim=True) + 1e-3) / (running_var + 1e-3)).sqrt()
    x_NBH.requires_grad_()
    normed = (x_NBH - x_NBH.mean(1, keepdim=True)) / (x_NBH.var(1, correction=0, keepdim=True) + 1e-3).sqrt()
    (expected,) = torch.autograd.grad((normed * r * other).sum(), x_NBH)
    renormed = renormalise(x_NBH, running_mean, running_var, torch.tensor(True))
    (got,) = torch.autograd.grad((renormed * other).sum(), x_NBH)
    torch.testing.assert_close(got, expected)


def test_plain_networks_do_what_those_in_training_do_by_running_statistics():
    torch.manual_seed(4)
    made = agent()
    shaken(made.actor.network)
    shaken(made.critic.network)
    seen = batch(5)
    fold(made.actor.network, made.actor_ema)
    fold(made.critic.network, made.critic_target)
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


def test_networks_of_other_widths_cannot_be_folded_into():
    plain = SquashedGaussianActor(OBS, BOX, hidden_sizes=(24,))
    with pytest.raises((RuntimeError, ValueError)):
        fold(BatchNormMLP(1, [10, 24, 16], 6), plain)


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_each_step_folds_what_it_has_changed(acceleration):
    made = agent(acceleration, policy_delay=2)
    published, before = made.get_actor(), made.get_actor().weights().arrays()
    for step in (1, 2):
        made.train(batch(step))
        for normed, plain in ((made.actor, made.actor_ema), (made.critic, made.critic_target)):
            expected = copy.deepcopy(plain)
            fold(normed.network, expected)
            assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), expected.parameters(), strict=True))
        changed = [not np.array_equal(before[name], now) for name, now in published.weights().arrays().items()]
        assert any(changed) is (step == 2)
    assert made.get_actor() is published


def test_the_published_actor_acts_without_torch_as_with_it():
    made = agent()
    made.train(batch(3))
    obs = batch(5).obs
    published = made.get_actor()
    one, rows_of_one = tuple(leaf[0].numpy() for leaf in obs), tuple(leaf[:1] for leaf in obs)
    np.testing.assert_allclose(
        published.in_numpy().act(one, test=True), published.act(rows_of_one, test=True), rtol=1e-4
    )


def test_values_of_now_depend_on_what_follows_them_in_the_joint_pass():
    torch.manual_seed(2)
    network = BatchNormMLP(2, [4, 8], 3)
    now, following = torch.randn(ROWS, 4), torch.randn(ROWS, 4) + 4.0
    joint = network(torch.cat((now, following)))[:, :ROWS]
    assert not torch.allclose(joint, network(now), atol=0.1)


def test_the_critics_learn_from_both_halves_of_one_pass():
    """The loss and the gradient of the head's bias, from a joint pass by hand."""
    made = agent()
    seen = batch(1)
    before = copy.deepcopy(made.critic.network)
    torch.manual_seed(7)
    with torch.no_grad():
        next_act, next_log_prob_B = made.actor_ema.sample(seen.next_obs)
    log_half_sum = float(np.log([2.0, 0.5, 1.0]).sum())
    rows = [
        torch.cat((made.critic.encoder(obs), made.critic.rescale_act(act)), 1)
        for obs, act in ((seen.obs, seen.act), (seen.next_obs, next_act))
    ]
    q_N2B = np.stack([by_hand(before, n, torch.cat(rows), "batch")[0][:, 0] for n in range(2)])
    next_v = q_N2B[:, ROWS:].min(0) - 1.0 * (next_log_prob_B.numpy() + log_half_sum)
    target_B = seen.rew.numpy() + 0.99 * (1 - seen.terminated.numpy()) * next_v
    torch.manual_seed(7)
    metrics = made.train(seen)
    error_NB = q_N2B[:, :ROWS] - target_B
    assert float(metrics["loss_critic"]) == pytest.approx(0.5 * np.square(error_NB).sum() / ROWS, rel=1e-4)
    assert float(metrics["q_target_mean"]) == pytest.approx(target_B.mean(), rel=1e-4, abs=1e-5)
    np.testing.assert_allclose(made.critic.network.bias.grad[:, 0, 0], error_NB.mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="as it ships"),
        pytest.param({"n_critics": 3, "policy_delay": 3, "scale_rewards": True, "gamma": 0.9}, id="others"),
        pytest.param({"learn_entropy_coef": False, "optimizer": "adamw", "weight_decay": 0.1}, id="adamw"),
    ],
)
def test_a_hundred_compiled_steps_give_the_losses_and_parameters_of_the_page(options, monkeypatch):
    monkeypatch.setattr(BatchNormMLP, "renorm_after", 30)
    page, compiled = agent("off", **RATES, **options), agent("auto", **RATES, **options)
    assert compiled.compiled is not None
    assert page.compiled is None
    for i in range(100):
        extra = {"discount": torch.full((ROWS,), 0.9)} if i % 2 else {}
        seen, said = batch(i, **extra), []
        for made in (page, compiled):
            torch.manual_seed(100 + i)
            said.append({name: float(value) for name, value in made.train(seen).items()})
        assert said[0] == pytest.approx(said[1], rel=2e-3, abs=1e-3)
    ours, theirs = states(compiled), states(page)
    for key, value in theirs.items():
        np.testing.assert_allclose(ours[key], value, rtol=2e-3, atol=2e-3, err_msg=key)


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_a_copy_trains_on_its_own(acceleration):
    made = agent(acceleration)
    made.train(batch(0))
    twin, before = copy.deepcopy(made), states(made)
    twin.train(batch(1))
    assert all(torch.equal(value, before[key]) for key, value in states(made).items())
    of_twin = states(twin)
    assert all(not torch.equal(of_twin[f"{name} head.weight"], before[f"{name} head.weight"])
               for name in ("actor_ema", "critic_target"))  # fmt: skip
    torch.manual_seed(3)
    made.train(batch(2))
    other = copy.deepcopy(twin)
    for one in (twin, other):
        torch.manual_seed(3)
        one.train(batch(2))
    ours, theirs = states(other), states(twin)
    assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


@pytest.mark.parametrize("acceleration", ["off", "auto"])
def test_an_agent_goes_on_from_its_state(acceleration):
    made, resumed = agent(acceleration), agent(acceleration)
    for i in range(3):
        made.train(batch(i))
    load_object_state(resumed, copy.deepcopy(object_state(made)))
    for one in (made, resumed):
        torch.manual_seed(9)
        for i in range(3, 6):
            one.train(batch(i))
    ours, theirs = states(resumed), states(made)
    assert all(torch.equal(ours[key], value) for key, value in theirs.items())


def test_an_evaluation_gives_the_losses_and_changes_nothing():
    made = agent()
    made.train(batch(0))
    before = states(made)
    losses = made.evaluate(batch(1))
    assert set(losses) == {"loss_critic", "loss_actor"}
    assert all(torch.isfinite(loss) for loss in losses.values())
    assert all(torch.equal(value, before[key]) for key, value in states(made).items())


def test_what_may_change_changes_and_averages_are_not_offered():
    made = agent()
    made.tune(lr_actor=1e-3, gamma=0.9, target_entropy=-1.0)
    assert (made.lr_actor, made.gamma, made.target_entropy) == (1e-3, 0.9, -1.0)
    for name in ("polyak", "actor_polyak"):
        with pytest.raises(ConfigError, match=f"{name} of CrossQAgent cannot change"):
            made.tune(**{name: 0.5})
    for name in ("polyak", "actor_polyak", "critics_in_target"):
        with pytest.raises(TypeError, match=name):
            CrossQOptions(**{name: 1})


def test_the_target_of_the_entropy_is_half_a_nat_for_each_dimension():
    assert agent().target_entropy == -1.5


def test_a_subclass_trains_by_the_page():
    class Mine(CrossQAgent):
        pass

    assert Mine(OBS, BOX).compiled is None


def test_a_policy_of_another_training_is_refused():
    made = agent()
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


def test_critics_are_as_wide_as_the_actor_unless_they_are_given_widths():
    made = CrossQAgent(OBS, BOX, actor_cls=partial(SquashedGaussianActor, hidden_sizes=(8, 7)))
    assert [weight.shape[-1] for weight in made.critic.network.weights] == [8, 7, 1]


def test_a_value_that_a_reward_tells_is_learnt():
    """One step to the end: the value of an action is its reward, 1 for the first action at its largest."""
    obs, act = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))
    torch.manual_seed(7)
    actor = partial(SquashedGaussianActor, hidden_sizes=(32, 32))
    made = CrossQAgent(obs, act, actor_cls=actor, entropy_coef=0.1, lr_actor=3e-3, lr_critic=3e-3)
    for _ in range(300):
        seen, taken = torch.rand(64, 2) * 2 - 1, torch.rand(64, 1) * 2 - 1
        made.train(Batch(seen, taken, taken[:, 0].clone(), seen, torch.ones(64), torch.zeros(64)))
    assert made.get_actor().act(torch.zeros(1, 2), test=True)[0] > 0.8
