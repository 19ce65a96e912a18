"""Training steps on flat parameters, and in graphs of a stand-in for CUDA."""

import copy
import pickle

import pytest
import torch
from kit.learners import assert_same, batch_of, train
from test_as_before import BOX, CASES, OBS
from torch.testing import assert_close

from tmrl_like.agents import acceleration, iqn, sac
from tmrl_like.agents.acceleration import Flat, FlatAdam, Graphed, accelerate, adam_step


class StandIn:
    """A stand-in for CUDA graphs: records a call and repeats it with the same tensors, in which
    its results are, too.
    """

    def __init__(self):
        self.captures = self.warm_ups = 0

    def warm_up(self, call):
        self.warm_ups += 1
        return call()

    def capture(self, call):
        self.captures += 1
        metrics = {}

        def replay():
            for name, value in call().items():
                metrics.setdefault(name, torch.zeros(())).copy_(torch.as_tensor(value))
            return metrics

        return replay


@pytest.fixture
def backend(monkeypatch):
    """Let accelerated agents replay their steps from a stand-in, which this returns."""
    backend = StandIn()
    for name in ("warm_up", "capture"):
        monkeypatch.setattr(acceleration, name, getattr(backend, name))
    for module in (sac, iqn):
        monkeypatch.setattr(module, "accelerate", lambda step, device, *more: Graphed(step, *more))
    monkeypatch.setattr(sac, "compiled_or_none", lambda make: None)
    return backend


def made(case="SAC", acceleration="auto"):
    torch.manual_seed(0)
    return CASES[case](acceleration=acceleration)


def test_a_step_is_torch_s_step_with_every_option():
    options = {"lr": 0.1, "betas": (0.5, 0.6), "eps": 0.1}
    theirs, ours = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
    optimizer, flat = torch.optim.Adam([theirs], **options), FlatAdam(ours, **options)
    for _ in range(5):
        theirs.grad = ours.grad = torch.randn(3)
        optimizer.step()
        adam_step(flat)
    assert_close(ours, theirs)


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
def test_a_parameter_without_a_gradient_in_the_pass_after_zero_grad_keeps_no_old_one():
    module = torch.nn.ModuleList(torch.nn.Linear(1, 1, bias=False) for _ in range(2))
    flat = Flat(module)
    sum(layer(torch.ones(1)) for layer in module).backward()
    module.zero_grad()
    module[1](torch.full((1,), 3.0)).backward()
    assert flat.parameter.grad.tolist() == [0.0, 3.0]
    module[0](torch.full((1,), 2.0)).backward()  # gradients of further passes add up
    assert flat.parameter.grad.tolist() == [2.0, 3.0]
    module.zero_grad()
    module[1](torch.ones(1)).square().backward(create_graph=True)
    assert not flat.parameter.grad.requires_grad


def test_a_learning_rate_schedule_finds_the_step_that_it_wraps():
    trained = made(acceleration="off")
    schedule = torch.optim.lr_scheduler.StepLR(trained.critic_optimizer, step_size=1, gamma=0.5)
    train(trained, 1)
    schedule.step()
    assert trained.lr_critic == pytest.approx(0.5e-3)


@pytest.mark.parametrize(("case", "captures"), [("REDQ", 2), ("IQN", 1)])
def test_graphs_change_no_result(backend, case, captures):
    plain, replayed = made(case, "off"), made(case)
    assert train(plain, 20) == train(replayed, 20)
    assert backend.captures == captures
    assert_same(plain, replayed)


def test_a_replay_s_metrics_are_the_caller_s_to_keep(backend):
    replayed = made()
    results = [replayed.train(batch_of((OBS, BOX), seed)) for seed in range(6)]
    assert len({metrics["loss_critic"].data_ptr() for metrics in results}) == 6


def test_a_pickled_agent_makes_graphs_of_its_own(backend):
    replayed = made()
    train(replayed, 6)
    again = pickle.loads(pickle.dumps(replayed))  # noqa: S301
    assert train(again, 6) == train(replayed, 6)
    assert_same(again, replayed)


def test_another_form_of_batch_gets_a_graph_of_its_own(backend):
    replayed = made()
    train(replayed, 6)
    train(replayed, 6, rows=16)
    train(replayed, 6, discount=torch.ones(32))
    assert backend.captures == 3
    assert train(replayed, 1) != train(replayed, 1, discount=torch.zeros(32))


def test_a_changed_learning_rate_and_a_loaded_checkpoint_make_new_graphs(backend):
    replayed = made()
    train(replayed, 6)
    optimizer, head = replayed.critic_optimizer, replayed.critic.head.weight
    optimizer.param_groups[0]["lr"] = 0.0
    before = head.clone()
    train(replayed, 6)
    assert torch.equal(head, before)
    assert backend.captures == 2
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(replayed, 6)
    assert backend.captures == 3


@pytest.mark.parametrize(
    ("case", "tuned"),
    [
        ("SAC", {"gamma": 0.5}),
        ("SAC", {"polyak": 0.5}),
        ("SAC", {"target_entropy": 3.0}),
        ("IQN", {"gamma": 0.5}),
        ("IQN", {"kappa": 0.1}),
        ("IQN", {"polyak": 0.25}),
        ("IQN", {"max_gradient_norm": 2.0}),
    ],
)
def test_what_is_tuned_makes_new_graphs_at_once(backend, case, tuned):
    replayed = made(case)
    train(replayed, 12)
    warm_ups, captures = backend.warm_ups, backend.captures
    replayed.tune(**tuned)
    train(replayed, 2)
    assert (backend.warm_ups, backend.captures) == (warm_ups, 2 * captures)


def test_on_a_processor_a_step_stays_as_it_is():
    def step(batch, flag):
        return {}

    assert accelerate(step, "cpu") is step
    assert isinstance(accelerate(step, "cuda"), Graphed)
