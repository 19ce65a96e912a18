"""Adam and AdamW, stepped with one call for all parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def make_optimizer(name: str, module: nn.Module, lr: float, **options: Any) -> torch.optim.Adam:
    """Adam or AdamW over the parameters of `module`, with torch's fused implementation.

    Args:
        name: a key of `OPTIMIZERS`.
        module: what to train.
        lr: learning rate.
        options: of torch's class: betas, eps, weight_decay, amsgrad.
    """
    return OPTIMIZERS[name](module.parameters(), lr=lr, fused=True, **options)


def clear_gradients(optimizer: torch.optim.Optimizer) -> None:
    """What `zero_grad` does, without its profiling hooks."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def step(optimizer: torch.optim.Adam) -> None:
    """What `optimizer.step()` does, without its hooks and checks: they cost more than the arithmetic.

    State and options are read where torch keeps them, so checkpoints and changes of `param_groups` work as ever.
    """
    groups = [(group, [p for p in group["params"] if p.grad is not None]) for group in optimizer.param_groups]
    if all(optimizer.state.get(p) for _, trained in groups for p in trained):
        for group, trained in groups:
            if trained:
                _step_group(_kernel(optimizer), group, trained, [optimizer.state[p] for p in trained])
    else:
        optimizer.step()  # makes the state


def fingerprint(optimizer: torch.optim.Optimizer) -> Any:
    """What a captured step has fixed: options, and which tensors hold the state. It changes when these do."""
    options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    first: dict[str, Any] = next(iter(optimizer.state.values()), {})
    return options, [value.data_ptr() for value in first.values() if isinstance(value, Tensor)]


def _step_group(
    kernel: Any, group: dict[str, Any], trained: list[nn.Parameter], states: list[dict[str, Tensor]]
) -> None:
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1)
    kernel(
        trained,
        [p.grad for p in trained],
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
        [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
        steps,
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=group["amsgrad"],
        maximize=group["maximize"],
    )


def _kernel(optimizer: torch.optim.Adam) -> Any:
    return torch._fused_adamw_ if isinstance(optimizer, torch.optim.AdamW) else torch._fused_adam_
