"""Copies of modules that share parameters."""

import torch

from tmrl_like.agents.sharing import copy_shared, no_grad


def test_a_shared_copy_sees_each_change_of_the_original():
    model = torch.nn.BatchNorm1d(2)
    twin = no_grad(copy_shared(model))
    for original in model.state_dict().values():
        original.fill_(7)
    assert all((seen == 7).all() for seen in twin.state_dict().values())
    assert not any(p.requires_grad for p in twin.parameters())
    assert all(p.requires_grad for p in model.parameters())
