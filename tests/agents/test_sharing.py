"""Copies of modules that share parameters."""

import torch

from tmrl_like.agents.sharing import copy_shared, no_grad


def test_a_shared_copy_sees_each_change_of_the_original():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("kept", torch.zeros(1))
    model.register_buffer("passing", torch.zeros(1), persistent=False)
    twin = no_grad(copy_shared(model))
    for original in (*model.parameters(), *model.buffers()):
        original.data.fill_(7.0)
    for seen in (*twin.parameters(), *twin.buffers()):
        assert bool((seen == 7.0).all())
    assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in model.parameters())
