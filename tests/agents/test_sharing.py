"""Copies of modules that share parameters."""

import torch

from tmrl_like.agents.sharing import copy_shared, no_grad


def test_a_shared_copy_sees_each_change_of_the_original():
    model = torch.nn.Linear(2, 2)
    twin = no_grad(copy_shared(model))
    with torch.no_grad():
        model.weight.fill_(7.0)
    assert bool((twin.weight == 7.0).all())
    assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in model.parameters())


def test_a_shared_copy_sees_buffers_that_are_not_part_of_the_weights():
    model = torch.nn.Module()
    model.register_buffer("kept", torch.zeros(1))
    model.register_buffer("passing", torch.zeros(1), persistent=False)
    twin = copy_shared(model)
    for buffer in model.buffers():
        buffer.fill_(7.0)
    assert (twin.kept, twin.passing) == (7.0, 7.0)
