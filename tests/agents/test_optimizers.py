import copy

import pytest
import torch

from tmrl_like.agents.optimizers import clear_gradients, make_optimizer, step


def net():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2)


def descend(model, optimizer, take_step, times):
    for i in range(times):
        clear_gradients(optimizer)
        (model(torch.full((1, 3), float(i))) ** 2).sum().backward()
        take_step()


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize(
    "options", [{}, {"betas": (0.5, 0.6)}, {"eps": 0.1}, {"weight_decay": 0.3}, {"amsgrad": True}], ids=str
)
def test_a_lean_step_is_torch_s_step_with_every_option(name, options):
    ours, theirs = net(), net()
    lean = make_optimizer(name, ours, 0.1, **options)
    reference = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name](theirs.parameters(), lr=0.1, **options)
    descend(ours, lean, lambda: step(lean), 5)
    descend(theirs, reference, reference.step, 5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_learning_rate_changed_in_param_groups_counts():
    model = net()
    optimizer = make_optimizer("adam", model, 0.1)
    descend(model, optimizer, lambda: step(optimizer), 2)
    optimizer.param_groups[0]["lr"] = 0.0
    before = copy.deepcopy(model.state_dict())
    descend(model, optimizer, lambda: step(optimizer), 2)
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_it_goes_on_from_a_saved_state():
    first, second = net(), net()
    one, two = make_optimizer("adam", first, 0.1), make_optimizer("adam", second, 0.1)
    descend(first, one, lambda: step(one), 3)
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for model, optimizer in ((first, one), (second, two)):
        descend(model, optimizer, lambda optimizer=optimizer: step(optimizer), 3)
    assert torch.equal(first.weight, second.weight)


def test_parameters_without_a_gradient_stay():
    model = net()
    optimizer = make_optimizer("adam", model, 0.1)
    descend(model, optimizer, lambda: step(optimizer), 1)
    clear_gradients(optimizer)
    before = model.weight.detach().clone()
    step(optimizer)
    assert torch.equal(before, model.weight)
