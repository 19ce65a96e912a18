import math

import pytest
import torch

from tmrl_like.agents.losses import actor_loss, critic_loss, critic_loss_gradient, soft_target, temperature_loss

ONES = torch.ones(3)
ALPHA = torch.tensor(0.5)


def test_the_target_is_reward_plus_discounted_soft_value_of_the_smallest_critic():
    next_q = torch.tensor([[10.0, 4.0, 6.0], [8.0, 5.0, 7.0]])
    target = soft_target(ONES, torch.zeros(3), next_q, torch.tensor([2.0, 0.0, -2.0]), ALPHA, 0.9)
    torch.testing.assert_close(target, 1.0 + 0.9 * torch.tensor([7.0, 4.0, 7.0]))


def test_a_terminal_state_has_no_value_beyond_it():
    target = soft_target(ONES, torch.tensor([0.0, 1.0, 1.0]), torch.full((2, 3), 10.0), torch.zeros(3), ALPHA, 0.9)
    torch.testing.assert_close(target, torch.tensor([10.0, 1.0, 1.0]))


def test_the_critic_loss_averages_over_the_batch_and_adds_over_the_critics():
    q = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert critic_loss(q, torch.tensor([1.0, 1.0])).item() == pytest.approx(0.5 * (2.0 + 1.0))


@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 1.0, 0.0, 2.0])])
def test_the_critics_gradient_is_the_derivative_of_their_loss(weight):
    q, target = torch.randn(3, 4, requires_grad=True), torch.randn(4)
    (gradient,) = torch.autograd.grad(critic_loss(q, target, weight), q)
    torch.testing.assert_close(critic_loss_gradient(q.detach(), target, weight), gradient)


def test_importance_weights_scale_each_transition_s_error():
    q = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    loss = critic_loss(q, torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.5]))
    assert loss.item() == pytest.approx(0.5 * (0.0 + 0.5 * 4.0 + 1.0 + 0.5 * 1.0) / 2)


def test_a_discount_of_its_own_holds_for_each_transition():
    target = soft_target(ONES, torch.zeros(3), torch.full((2, 3), 10.0), torch.zeros(3), ALPHA, torch.arange(3.0))
    assert target.tolist() == [1.0, 11.0, 21.0]


def test_the_actor_loss_trades_value_against_entropy():
    loss = actor_loss(torch.tensor([1.0, 3.0]), torch.tensor([4.0, 4.0]), ALPHA)
    assert loss.item() == pytest.approx(0.5 * 2.0 - 4.0)


@pytest.mark.parametrize(("entropy", "sign"), [(5.0, 1), (-5.0, -1)])
def test_the_temperature_falls_while_entropy_is_above_its_target_and_rises_below(entropy, sign):
    log_coef = torch.tensor(math.log(0.3), requires_grad=True)
    loss = temperature_loss(log_coef, torch.tensor(entropy), -2.0)
    loss.backward()
    assert math.copysign(1, log_coef.grad.item()) == sign
    assert loss.item() == pytest.approx(math.log(0.3) * (entropy + 2.0))
