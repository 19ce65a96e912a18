"""The compiled training step compared with the readable one: equal losses and parameters on equal
batches and noise.
"""

import copy
import pickle
import sys
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box, picture
from kit.learners import assert_same, small, tensors_of, train
from test_as_before import BOX
from threadpoolctl import ThreadpoolController
from torch.testing import assert_close

from tmrl_like.agents import (
    CrossQAgent,
    EnsembleCritic,
    SACAgent,
    SquashedGaussianActor,
    dense,
)
from tmrl_like.policies.network import LOG_STD_MAX, LOG_STD_MIN

FREE = box(np.inf, 4)
NEAR = {"rtol": 1e-3, "atol": 1e-4}


def both(cls=SACAgent, observation_space=FREE, action_space=BOX, **options):
    """Return an agent that trains without acceleration, and its compiled twin."""
    page, compiled = (
        small(cls, (observation_space, action_space), acceleration=how, **options)
        for how in ("off", "auto")
    )
    assert page.compiled is None
    assert compiled.compiled is not None
    return page, compiled


def at_bounds(*both_spaces):
    """Return an actor some of whose standard deviations are about the least or the largest."""
    actor = SquashedGaussianActor(*both_spaces, hidden_sizes=(8,))
    with torch.no_grad():
        actor.head.bias[-3:] = torch.tensor([LOG_STD_MIN, LOG_STD_MAX, 0.0])
    return actor


@pytest.mark.parametrize(
    ("space", "options"),
    [
        (BOX, {"actor_cls": partial(SquashedGaussianActor, hidden_sizes=())}),
        (BOX, {"actor_cls": at_bounds}),
        (spaces.Box(0.0, 3e6, (2,)), {}),
        (
            BOX,
            {
                "cls": CrossQAgent,
                "actor_cls": partial(SquashedGaussianActor, hidden_sizes=()),
                "critic_cls": partial(EnsembleCritic, hidden_sizes=(), layer_norm=False),
            },
        ),
        (box(1), {"gamma": 1, "n_critics": 3}),  # an action without dimensions
    ],
)
def test_networks_and_spaces_that_are_unusual_train_as_on_the_page(space, options):
    page, compiled = both(action_space=space, **options)
    for made in (page, compiled):
        train(made, 5)
    assert_same(compiled, page, **NEAR)


def test_what_is_tuned_and_what_a_scheduler_sets_counts_at_once():
    tuned = {
        "lr_actor": 1e-2,
        "gamma": 0.5,
        "polyak": 0.5,
        "actor_polyak": 0.1,
        "policy_delay": 2,
        "entropy_coef": 0.7,
    }
    page, compiled = both(learn_entropy_coef=False, n_critics=3, critics_in_target=2)
    before = copy.deepcopy(page)
    for made in (page, compiled):
        train(made, 3)
        made.tune(**tuned)
        assert {name: getattr(made, name) for name in tuned} == pytest.approx(tuned)
        made.critics_in_target = 3
        made.critic_optimizer.param_groups[0]["lr"] = torch.tensor(1e-2)
        train(made, 4, first=10)
    assert_same(compiled, page, **NEAR)
    train(before, 3)
    assert train(before, 1, first=10)[0]["q_target_mean"] != pytest.approx(
        train(page, 1, first=10)[0]["q_target_mean"], abs=0.01
    )


def test_batches_of_another_size_are_seen_as_on_the_page():
    page, compiled = both(policy_delay=3)
    for made in (page, compiled):
        for rows in (16, 40, 16):
            train(made, 3, rows=rows)
    assert_same(compiled, page, **NEAR)


class OwnActor(SquashedGaussianActor):
    pass


def overriding(name):
    """Return a subclass that overrides a part of the page."""
    return type("Mine", (SACAgent,), {name: None})


def half_frozen(*both_spaces):
    actor = SquashedGaussianActor(*both_spaces, hidden_sizes=(8,))
    actor.hidden[0].weight.requires_grad_(False)
    return actor


@pytest.mark.parametrize(
    ("cls", "space", "networks"),
    [
        (SACAgent, FREE, {"actor_cls": OwnActor}),
        (overriding("_td_target"), FREE, {}),
        (overriding("_critic_loss"), FREE, {}),
        (overriding("_values"), FREE, {}),
        (overriding("_policy"), FREE, {}),
        (type("Mine", (CrossQAgent,), {}), FREE, {}),
        (SACAgent, picture(1, 16, 16), {}),
        (SACAgent, FREE, {"critic_cls": partial(EnsembleCritic, dropout=0.1)}),
        (SACAgent, FREE, {"critic_cls": partial(EnsembleCritic, normalize_obs=False)}),
        (
            SACAgent,
            box(1, 3),
            {"critic_cls": partial(EnsembleCritic, obs_range=1.0)},
        ),
        (SACAgent, FREE, {"actor_cls": half_frozen}),
    ],
)
def test_what_differs_from_the_page_trains_by_the_page(cls, space, networks):
    assert cls(space, BOX, **networks).compiled is None


def test_a_parameter_that_is_frozen_before_the_start_stays_as_it_is():
    agent = SACAgent(FREE, BOX, actor_cls=half_frozen)
    weight, bias = (p.detach().clone() for p in agent.actor.hidden[0].parameters())
    train(agent, 5)
    assert torch.equal(agent.actor.hidden[0].weight, weight)
    assert not torch.equal(agent.actor.hidden[0].bias, bias)


class Own(SACAgent):
    def _train_critics(self, batch):
        loss = (self.critic(batch.obs, batch.act) - self._td_target(batch)).square().mean()
        for holder in (self.critic_optimizer, self.critic):
            holder.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        return {"loss_critic": loss.detach()}

    def average(self, with_actor):
        self.averaged = True


def test_users_may_descend_as_usual_in_torch_and_average_in_their_own_way_also_in_a_copy():
    own = small(Own, (FREE, BOX))
    train(own, 1)
    for made in (own, copy.deepcopy(own), pickle.loads(pickle.dumps(own))):  # noqa: S301
        before = tensors_of(made)
        train(made, 2)
        after = tensors_of(made)
        moved = [
            not torch.equal(after[name], before[name])
            for name in ("critic head.weight", "critic_target head.weight")
        ]
        assert (moved, made.averaged) == ([True, False], True)


NO_NORM = {"critic_cls": partial(EnsembleCritic, hidden_sizes=(8,), layer_norm=False)}


@pytest.mark.parametrize(("cls", "options"), [(SACAgent, {}), (CrossQAgent, NO_NORM)])
def test_a_copy_whose_gradients_are_taken_away_trains_as_the_original(cls, options):
    one = small(cls, (FREE, BOX), **options)
    copied = copy.deepcopy(one)
    for module in (copied.actor, copied.critic):
        module.zero_grad()
    for made in (one, copied):
        train(made, 5)
    assert copied.compiled is not None
    assert_same(copied, one)


def test_critics_that_tie_share_the_gradient_as_on_the_page():
    page, compiled = both(lr_critic=0.0)
    for made in (page, compiled):
        with torch.no_grad():
            made.critic.head.bias.fill_(1e8)  # to which nothing else adds in float32
        train(made, 5)
    assert_same(compiled, page, **NEAR)


@pytest.mark.parametrize("broken", [0, 1])
def test_one_critic_that_is_not_finite_makes_the_losses_so(broken):
    for made in both(lr_critic=0.0):
        with torch.no_grad():
            made.critic.hidden[-1].bias[broken] = np.nan
        (metrics,) = train(made, 1)
        assert np.isnan(metrics["loss_critic"])
        assert np.isnan(metrics["loss_actor"])
        assert made.actor.head.weight.isnan().any()


@pytest.fixture
def threads_of_torch():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Watched(SACAgent):
    def average(self, with_actor):
        super().average(with_actor)
        self.threads = torch.get_num_threads()


def test_matrix_products_use_as_many_threads_as_torch_is_told_to_and_the_rest_one(threads_of_torch):
    made = small(Watched, (FREE, BOX))
    train(made, 1)  # loads the BLAS library
    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    assert libraries
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        train(made, 1)
        assert {library.num_threads for library in libraries} == {threads}
        assert made.threads == 1
        assert torch.get_num_threads() == threads


def test_numba_without_scipy_costs_speed_alone(monkeypatch, caplog):
    for module in ("dense", "dense_sac"):
        monkeypatch.delitem(sys.modules, f"tmrl_like.agents.{module}")
    monkeypatch.setitem(sys.modules, "scipy.linalg.cython_blas", None)
    made = small(SACAgent, (box(1, 4), BOX))
    assert np.isfinite(train(made, 1)[0]["loss_critic"])
    assert "slower than with numba, which cannot be used: " in caplog.text


def test_without_numba_a_line_says_what_to_install(monkeypatch, caplog):
    caplog.set_level("INFO", logger="tmrl_like.agents")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert small(SACAgent, (FREE, BOX)).compiled is None
    assert "tmrl_like[fast]" in caplog.text


def test_a_full_disk_and_a_damaged_file_of_compiled_code_cost_time_and_a_line(monkeypatch, caplog):
    def fail(*args):
        raise OSError(28, "No space left on device")

    for name in ("load", "save"):
        monkeypatch.setattr(f"numba.core.caching.IndexDataCacheFile.{name}", fail)

    def double(x):
        return 2 * x

    made = dense.compiled(double)
    assert (made(3), made(0.5)) == (6, 1.0)
    (line,) = caplog.messages
    assert line.startswith("compiled code cannot be kept in ")


def test_a_training_starts_from_a_policy_and_goes_on_with_its_statistics_as_the_page_does():
    donor = small(SACAgent, (FREE, BOX), acceleration="off")
    train(donor, 20)
    weights = donor.get_actor().weights()
    page, compiled = both()
    for one in (compiled, page):
        one.start_from(weights, training_steps=20)
        assert one.get_actor().weights() == one.actor.weights() == weights
        for ours, theirs in zip(one.obs_norm.buffers(), donor.obs_norm.buffers(), strict=True):
            assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        train(one, 5, first=30)
    assert_same(compiled, page, **NEAR)
