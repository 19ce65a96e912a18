"""An estimate of the size of returns from batches of transitions. Shape names: B batch."""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803
from __future__ import annotations

import torch
from torch import Tensor, nn

from tmrl_like.agents.agent import Averaging
from tmrl_like.agents.observations import RunningNorm

_LARGEST_DISCOUNT = 0.999
_SMALLEST = 1e-6


class ReturnScale(nn.Module):
    """A running estimate of the size of returns, by which rewards are divided so that values stay
    near 1.

    Lee et al., "Hyperspherical Normalization for Scalable Deep Reinforcement Learning", 2025
    (SimbaV2, arXiv:2502.15280), section on reward scaling, which follows returns along episodes. A
    batch contains no episodes: if its rewards r were independent of each other and of d, the
    discount of what follows (gamma, or gamma^n for n steps; 0 after a terminal state), the return
    G = r + d G' would have

        E[G] = E[r] / (1 - E[d]),    E[G^2] = (E[r^2] + 2 E[r] E[d] E[G]) / (1 - E[d^2])
        scale = max(sqrt(E[G^2]), max abs(r))

    with the expectations weighted over batches as in `RunningNorm`. No reward is larger than 1
    after the division, rare ones included.

    Attributes:
        means: float64 [4], means of r, r^2, d and d^2.
        largest: float64 [], max abs(r).
        count: float64 [], number of batches seen.
    """

    means: Tensor
    largest: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name, shape in (("means", (4,)), ("largest", ()), ("count", ())):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rew_B: Tensor, discount_B: Tensor, ranks: Averaging | None = None) -> Tensor:
        """Add a batch's rewards and the discounts of what follows them to the estimate, and return
        the scale, float32 []. Reads nothing back from the device.

        The batches of all `ranks` count as one.
        """
        weight = self.count.add_(1.0).clamp(max=RunningNorm.HORIZON).reciprocal_()
        seen = torch.stack((rew_B, discount_B)).double()  # [2, B]
        moments = torch.stack((seen, seen.square()), 1).mean(2)
        largest = torch.maximum(self.largest, rew_B.abs().amax())
        if ranks is not None:
            ranks.mean(moments)
            ranks.largest(largest)
        self.means.view(2, 2).lerp_(moments, weight)
        self.largest.copy_(largest)
        return self.scale()

    def scale(self) -> Tensor:
        """Return the scale by which rewards are divided, float32 []."""
        rew, square = self.means[:2]
        discount, square_discount = self.means[2:].clamp(max=_LARGEST_DISCOUNT)
        size: Tensor = (square + 2.0 * discount * rew.square() / (1.0 - discount)) / (
            1.0 - square_discount
        )
        return size.sqrt_().maximum(self.largest).clamp_(min=_SMALLEST).float()
