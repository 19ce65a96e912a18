"""The compiled training step against the page: equal losses and parameters on equal batches and noise."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from threadpoolctl import ThreadpoolController

from tmrl_like.agents import (
    EnsembleCritic,
    REDQAgent,
    SACAgent,
    SquashedGaussianActor,
    dense,
    dense_sac,
)
from tmrl_like.agents.acceleration import Flat
from tmrl_like.agents.agent import modules_of
from tmrl_like.agents.dense import forward, network_of
from tmrl_like.trainer.snapshot import load_object_state, object_state
from tmrl_like.types import Batch

ROWS = 64
OBS = spaces.Tuple((spaces.Box(-1.0, 1.0, (5,)), spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3)))
BOX = spaces.Box(np.float32([-2.0, 0.0, -1.0]), np.float32([2.0, 1.0, 1.0]))
REDQ = partial(REDQAgent, n_critics=4, policy_delay=3)
PLAIN = {"actor_polyak": 0.0}


def agent(cls, space, acceleration, layer_norm=True, normalize_obs=True, obs=OBS, **options):
    torch.manual_seed(0)
    nets = {"hidden_sizes": (24, 16), "layer_norm": layer_norm, "normalize_obs": normalize_obs}
    classes = {"actor_cls": partial(SquashedGaussianActor, **nets), "critic_cls": partial(EnsembleCritic, **nets)}
    return cls(obs, space, acceleration=acceleration, **classes, **options)


DRAWN = {}  # drawing batches, sample by sample, takes longer than training on them


def batch(space, seed, rows=ROWS, obs=OBS, **extra):
    key = repr(space), seed, rows, repr(obs)
    if key not in DRAWN:
        DRAWN[key] = draw(space, seed, rows, obs)
    return Batch(*DRAWN[key], **extra)


def draw(space, seed, rows, obs):
    rng = np.random.default_rng(seed)
    for part in (obs, space):
        part.seed(seed)

    def observations():
        samples = [obs.sample() for _ in range(rows)]
        if isinstance(obs, spaces.Box):
            return torch.from_numpy(np.stack(samples))
        return tuple(torch.from_numpy(np.stack(leaf)) for leaf in zip(*samples, strict=True))

    act = torch.from_numpy(np.stack([space.sample() for _ in range(rows)]))
    rew = torch.from_numpy(rng.standard_normal(rows).astype(np.float32) * 3)
    terminated = torch.from_numpy((rng.random(rows) < 0.2).astype(np.float32))
    return observations(), act, rew, observations(), terminated, torch.zeros(rows)


def train(agent, space, steps, first=0, **options):
    torch.manual_seed(first + 1)
    return [agent.train(batch(space, first + i, **options)) for i in range(steps)]


def assert_equal(one, other):
    for name in ("actor", "actor_ema", "critic", "critic_target", "temperature", "obs_norm"):
        ours, theirs = getattr(one, name), getattr(other, name)
        if ours is None:
            assert theirs is None
            continue
        for key, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[key], value, rtol=1e-3, atol=1e-4, err_msg=f"{name} {key}")


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        pytest.param(SACAgent, {}, id="recipe"),
        pytest.param(SACAgent, {**PLAIN, "layer_norm": False, "normalize_obs": False}, id="plain"),
        pytest.param(SACAgent, {"scale_rewards": True, "learn_entropy_coef": False}, id="scaled rewards"),
        pytest.param(SACAgent, {"optimizer": "adamw", "weight_decay": 0.1, "amsgrad": True}, id="adamw"),
        pytest.param(SACAgent, {"n_critics": 3, "policy_delay": 2, "gamma": 0.9, "polyak": 0.9}, id="three critics"),
        pytest.param(REDQ, {}, id="REDQ"),
    ],
)
def test_a_hundred_steps_give_the_losses_and_parameters_of_the_page(cls, options):
    page, compiled = (agent(cls, BOX, how, **options) for how in ("off", "auto"))
    assert compiled.compiled
    assert page.compiled is None
    for ours, theirs in zip(train(compiled, BOX, 100), train(page, BOX, 100), strict=True):
        expected = {name: float(value) for name, value in theirs.items()}
        assert {k: float(v) for k, v in ours.items()} == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert_equal(compiled, page)


def test_discounts_are_those_of_the_page():
    page, compiled = (agent(SACAgent, BOX, how) for how in ("off", "auto"))
    for one in (page, compiled):
        train(one, BOX, 5, discount=torch.linspace(0.8, 1, ROWS))
    assert_equal(compiled, page)


def test_batches_may_change_their_size():
    page, compiled = (agent(SACAgent, BOX, how) for how in ("off", "auto"))
    for made in (page, compiled):
        for rows in (16, 40, 16):
            train(made, BOX, 2, rows=rows)
    assert_equal(compiled, page)


def test_a_batch_that_comes_again_before_the_actor_s_turn_is_seen_by_the_statistics_of_its_step():
    page, compiled = (agent(SACAgent, BOX, how, policy_delay=3) for how in ("off", "auto"))
    for made in (page, compiled):
        train(made, BOX, 1)
        torch.manual_seed(9)
        again = batch(BOX, 7)
        for _ in range(6):
            made.train(again)
    assert_equal(compiled, page)


def test_a_learning_rate_and_a_loaded_state_count():
    through, saved = (agent(SACAgent, BOX, "auto") for _ in range(2))
    train(through, BOX, 3)
    state = copy.deepcopy(object_state(through))
    train(saved, BOX, 1, first=50)  # has state of its own, which goes
    load_object_state(saved, state)
    for made in (through, saved):
        made.actor_optimizer.param_groups[0]["lr"] = 0.0
        train(made, BOX, 3, first=10)
    assert_equal(saved, through)


class OwnActor(SquashedGaussianActor):
    pass


class OwnTarget(SACAgent):
    def _td_target(self, batch):
        return super()._td_target(batch)


class OwnDefaults(SACAgent):
    def __init__(self, *args, **options):
        super().__init__(*args, gamma=0.5, **options)


def test_what_differs_from_the_page_trains_by_the_page():
    vectors = spaces.Box(-1.0, 1.0, (3,))
    pictures = spaces.Box(0, 255, (1, 16, 16), np.uint8)
    dropout = partial(EnsembleCritic, hidden_sizes=(8,), dropout=0.1)
    other_range = partial(EnsembleCritic, hidden_sizes=(8,), obs_range=1.0, normalize_obs=False)
    assert OwnDefaults(vectors, BOX).compiled
    for made in (
        SACAgent(vectors, BOX, actor_cls=OwnActor),
        OwnTarget(vectors, BOX),
        SACAgent(pictures, BOX),
        SACAgent(vectors, BOX, critic_cls=dropout),
        SACAgent(vectors, BOX, critic_cls=other_range),
    ):
        assert made.compiled is None


def test_without_numba_an_agent_trains_by_the_page(monkeypatch, caplog):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with caplog.at_level("INFO", logger="tmrl_like.agents"):
        made = SACAgent(spaces.Box(-1.0, 1.0, (3,)), BOX)
    assert made.compiled is None
    assert "tmrl_like[fast]" in caplog.text


def test_an_error_that_is_not_finite_stays_one():
    critic = EnsembleCritic(spaces.Box(-1.0, 1.0, (3,)), BOX, hidden_sizes=(8,))
    x = np.zeros((4, 6), np.float32)
    x[1, 2] = np.nan
    values = forward(network_of(critic, Flat(critic)), x, np.arange(2)).y[-1]
    assert np.isnan(values[:, 1]).all()
    assert np.isfinite(values[:, [0, 2, 3]]).all()


SEES = spaces.Box(-np.inf, np.inf, (4,))
SMALL = {"actor_cls": partial(SquashedGaussianActor, hidden_sizes=(8,))}


@pytest.mark.parametrize(
    ("space", "options"),
    [
        pytest.param(BOX, {"critic_cls": partial(EnsembleCritic, normalize_obs=False)}, id="critics see raw numbers"),
        pytest.param(BOX, {"actor_cls": partial(SquashedGaussianActor, hidden_sizes=())}, id="no hidden layer"),
        pytest.param(
            BOX,
            {"actor_cls": partial(SquashedGaussianActor, hidden_sizes=(8,), log_std_min=-0.1, log_std_max=0.1)},
            id="standard deviations at their bounds",
        ),
        pytest.param(spaces.Box(0.0, 3e6, (2,)), {}, id="wide bounds of actions"),
        pytest.param(spaces.Box(-1.0, 1.0, ()), {"weight_decay": 0, "gamma": 1}, id="an action without dimensions"),
    ],
)
def test_networks_and_spaces_that_are_unusual_train_as_on_the_page(space, options):
    page, compiled = (agent_of(space, how, **options) for how in ("off", "auto"))
    for made in (page, compiled):
        train(made, space, 5, obs=SEES)
    assert_equal(compiled, page)


def agent_of(space, acceleration, **options):
    torch.manual_seed(0)
    return SACAgent(SEES, space, acceleration=acceleration, **(SMALL | options))


@pytest.mark.parametrize("how", ["off", "auto"])
def test_a_deep_copy_of_an_agent_trains_by_itself(how):
    one = agent_of(BOX, how)
    train(one, BOX, 2, obs=SEES)
    twin = copy.deepcopy(one)
    train(twin, BOX, 3, obs=SEES)
    train(one, BOX, 3, obs=SEES)
    assert_equal(twin, one)
    assert (twin.compiled is not None) == (how == "auto")


def test_what_an_agent_scheduler_changes_counts_at_once():
    page, compiled = (agent_of(BOX, how, n_critics=3, critics_in_target=2) for how in ("off", "auto"))
    for made in (page, compiled):
        train(made, BOX, 3, obs=SEES)
        made.gamma, made.polyak, made.actor_polyak, made.target_entropy, made.policy_delay = 0.5, 0.5, 0.1, -7.0, 2
        made.critics_in_target = 3
        made.actor_optimizer.param_groups[0]["lr"] = torch.tensor(1e-2)
        made.critic_optimizer.param_groups[0]["lr"] = 0
        train(made, BOX, 4, first=10, obs=SEES)
    assert_equal(compiled, page)


TUNED = {
    **dict.fromkeys(("lr_actor", "lr_critic"), 1e-2),
    "gamma": 0.5,
    "polyak": 0.5,
    "actor_polyak": 0.1,
    "policy_delay": 2,
    "entropy_coef": 0.7,
}


def test_what_is_tuned_counts_at_once():
    page, compiled, as_it_was = (agent(SACAgent, BOX, how, learn_entropy_coef=False) for how in ("off", "auto", "off"))
    for made in (page, compiled, as_it_was):
        train(made, BOX, 3)
        if made is not as_it_was:
            made.tune(**TUNED)
            assert {name: getattr(made, name) for name in TUNED} == pytest.approx(TUNED)
        made.losses = train(made, BOX, 4, first=10)
    assert_equal(compiled, page)
    of_both = [{k: float(v) for k, v in made.losses[0].items()} for made in (compiled, page)]
    assert of_both[0] == pytest.approx(of_both[1], rel=1e-3, abs=1e-4)
    assert abs(page.losses[0]["q_target_mean"] - as_it_was.losses[0]["q_target_mean"]) > 0.01


class FrozenActor(SquashedGaussianActor):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.hidden[0].weight.requires_grad_(False)


class OwnDescent(SACAgent):
    def _train_critics(self, batch):
        loss = (self.critic(batch.obs, batch.act) - self._td_target(batch)).square().mean()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return {"loss_critic": loss.detach()}


class OwnAverage(SACAgent):
    def average(self, with_actor):
        self.averaged = True


def test_users_may_freeze_parameters_descend_as_usual_in_torch_and_average_in_their_own_way():
    frozen = agent_of(BOX, "auto", actor_cls=partial(FrozenActor, hidden_sizes=(8,)))
    fixed, trained = (copy.deepcopy(p) for p in (frozen.actor.hidden[0].weight, frozen.actor.hidden[0].bias))
    torch.manual_seed(0)
    own = OwnDescent(SEES, BOX, **SMALL)
    critic = copy.deepcopy(own.critic.head.weight)
    averaging = OwnAverage(SEES, BOX, **SMALL)
    for made in (frozen, own, averaging):
        train(made, BOX, 2, obs=SEES)
    torch.testing.assert_close(frozen.actor.hidden[0].weight, fixed)
    assert not torch.equal(frozen.actor.hidden[0].bias, trained)
    assert not torch.equal(own.critic.head.weight, critic)
    assert averaging.averaged


def test_a_parameter_that_is_frozen_before_the_start_stays_as_it_is():
    def half_frozen(*spaces):
        actor = SquashedGaussianActor(*spaces, hidden_sizes=(8,))
        actor.hidden[0].weight.requires_grad_(False)
        return actor

    page, frozen = (agent_of(BOX, how, actor_cls=half_frozen) for how in ("off", "auto"))
    before = copy.deepcopy(frozen.actor.state_dict())
    for made in (page, frozen):
        train(made, BOX, 5, obs=SEES)
    assert_equal(frozen, page)
    after = frozen.actor.state_dict()
    torch.testing.assert_close(after["hidden.0.weight"], before["hidden.0.weight"])
    assert not torch.equal(after["hidden.0.bias"], before["hidden.0.bias"])


@pytest.fixture
def threads_of_torch():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_matrix_products_use_as_many_threads_as_torch_is_told_to(threads_of_torch):
    made = agent_of(BOX, "auto")
    train(made, BOX, 1, obs=SEES)  # loads the library
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    assert libraries
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        train(made, BOX, 1, obs=SEES)
        assert {library.num_threads for library in libraries} == {threads}


def test_numba_that_is_broken_or_switched_off_costs_speed_alone(monkeypatch, caplog):
    def fail(*args):
        raise ImportError("Numba needs NumPy 2.2 or less")

    monkeypatch.setattr(dense_sac, "network_of", fail)
    assert agent_of(BOX, "auto").compiled is None
    assert "slower than with numba, which cannot be used: ImportError: Numba needs NumPy 2.2" in caplog.text


def test_a_full_disk_and_a_damaged_file_of_compiled_code_cost_time_and_a_line(monkeypatch, caplog):
    def fail(*args):
        raise OSError(28, "No space left on device")

    for name in ("load", "save"):
        monkeypatch.setattr(f"numba.core.caching.IndexDataCacheFile.{name}", fail)

    def double(x):
        return 2 * x

    dense._say_that_nothing_is_kept.cache_clear()
    made = dense.compiled(double)
    assert (made(3), made(0.5)) == (6, 1.0)
    (line,) = caplog.messages
    assert f"cannot be kept in {made._cache.cache_path}, " in line


def test_a_training_that_starts_from_a_policy_is_the_same_compiled_and_on_the_page():
    donor = agent(SACAgent, BOX, "off")
    train(donor, BOX, 3)
    weights = donor.get_actor().weights()
    compiled, page = (agent(SACAgent, BOX, acceleration) for acceleration in ("auto", "off"))
    assert compiled.compiled
    for one in (compiled, page):
        before = copy.deepcopy(one.critic.state_dict())
        one.start_from(weights, training_steps=3)
        assert one.get_actor().weights() == one.actor.weights() == weights
        changed = [name for name, value in one.critic.state_dict().items() if not torch.equal(value, before[name])]
        assert all("rescale" in name for name in changed)
        train(one, BOX, 5, first=10)
    assert_equal(compiled, page)
    assert compiled.get_actor().weights() != weights


def test_the_statistics_of_a_policy_that_a_training_starts_from_are_gone_on_with():
    donor, heir = agent(SACAgent, BOX, "off"), agent(SACAgent, BOX, "off")
    train(donor, BOX, 20)
    heir.start_from(donor.get_actor().weights(), training_steps=20)
    for name in ("mean", "mean_square", "count"):
        np.testing.assert_allclose(getattr(heir.obs_norm, name), getattr(donor.obs_norm, name), rtol=1e-5, atol=1e-6)
    train(donor, BOX, 1, first=50)
    train(heir, BOX, 1, first=50)
    np.testing.assert_allclose(heir.obs_norm.scale, donor.obs_norm.scale, rtol=1e-5)


@pytest.mark.parametrize("how", ["off", "auto"])
@pytest.mark.parametrize("cls", [SACAgent, REDQ])
@pytest.mark.parametrize("plain", [True, False])
def test_a_batch_that_is_held_out_gives_the_losses_and_changes_nothing(cls, how, plain):
    one = agent(cls, BOX, how, normalize_obs=not plain, scale_rewards=not plain)
    train(one, BOX, 4)
    state = [value.clone() for module in modules_of(one).values() for value in module.state_dict().values()]
    torch.manual_seed(5)
    found = one.evaluate(batch(BOX, 50))
    after = [value for module in modules_of(one).values() for value in module.state_dict().values()]
    assert all(map(torch.equal, state, after))
    torch.manual_seed(5)
    trained = one.train(batch(BOX, 50))
    assert set(found) == {"loss_critic", "loss_actor"}
    assert np.isfinite(float(found["loss_actor"]))
    assert float(found["loss_critic"]) == pytest.approx(float(trained["loss_critic"]), rel=1e-4 if plain else 0.5)
