"""Passes written by hand give what autograd gives."""

import itertools

import pytest
import torch

from tmrl_like.agents.functions import EnsembleReluMLP, SquashedGaussian, squashed_log_prob


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def network(n=3, sizes=(7, 16, 12)):
    """Parameters in the order that `EnsembleReluMLP` takes."""
    parameters = []
    for size_in, size_out in itertools.pairwise(sizes):
        parameters += [torch.randn(n, size_in, size_out), torch.randn(n, 1, size_out)]
    return [p.double().requires_grad_() for p in (*parameters, torch.randn(n, 1, sizes[-1]), torch.randn(n, 1))]


def reference(features, act, *parameters):
    x = torch.cat((features, act), 1).expand(len(parameters[0]), -1, -1)
    for weight, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = torch.relu(x @ weight + bias)
    return (x * parameters[-2]).sum(-1) + parameters[-1]


def gradients(function, inputs, reduce):
    """Of all inputs that want one; None for the others."""
    wanted = [x for x in inputs if x.requires_grad]
    found = iter(torch.autograd.grad(reduce(function(*inputs)), wanted))
    return [next(found) if x.requires_grad else None for x in inputs]


@pytest.mark.parametrize("reduce", [lambda q: q.amin(0).sum(), lambda q: q.mean(0).square().sum()], ids=["min", "mean"])
@pytest.mark.parametrize("wanted", ["parameters", "action", "action and parameters", "all", "features"])
@pytest.mark.parametrize("sizes", [(7, 16, 12), (7, 16)])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_ensemble_s_gradients_are_those_of_autograd(monkeypatch, threads, sizes, wanted, reduce):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    features, act, parameters = torch.randn(32, 5).double(), torch.randn(32, 2).double(), network(sizes=sizes)
    features.requires_grad_("features" in wanted or wanted == "all")
    act.requires_grad_("action" in wanted or wanted == "all")
    for p in parameters:
        p.requires_grad_("parameters" in wanted or wanted == "all")
    inputs = [features, act, *parameters]
    torch.testing.assert_close(EnsembleReluMLP.apply(*inputs), reference(*inputs))
    ours, theirs = (gradients(f, inputs, reduce) for f in (EnsembleReluMLP.apply, reference))
    for a, b in zip(ours, theirs, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)


def test_a_squashed_action_s_gradients_are_those_of_autograd():
    mean, log_std = (torch.randn(16, 3).double().requires_grad_() for _ in range(2))
    noise, center, half = torch.randn(16, 3).double(), torch.randn(3).double(), torch.rand(3).double()

    def by_autograd(mean, log_std):
        u = mean + log_std.exp() * noise
        return center + half * u.tanh(), squashed_log_prob(u, noise, log_std)

    def by_hand(mean, log_std):
        return SquashedGaussian.apply(mean, log_std, noise, center, half)

    for reduce in (lambda r: r[0].square().sum() + r[1].square().sum(), lambda r: r[0].sum(), lambda r: r[1].sum()):
        for a, b in zip(*(gradients(f, [mean, log_std], reduce) for f in (by_hand, by_autograd)), strict=True):
            torch.testing.assert_close(a, b)


def test_the_log_density_stays_finite_where_tanh_saturates():
    mean = torch.tensor([[30.0], [-30.0]], requires_grad=True)
    zero = torch.zeros(2, 1)
    _, log_prob = SquashedGaussian.apply(mean, zero, zero, torch.zeros(1), torch.ones(1))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    torch.testing.assert_close(mean.grad, torch.tensor([[2.0], [-2.0]]))
