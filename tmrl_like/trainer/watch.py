"""What watches a training: it is told what happens, in the training's own thread, and changes nothing of it."""

from __future__ import annotations

from typing import Any

from tmrl_like.types import Batch, Delivery


class Listener:
    """Is told what happens in a training. Override what you want to hear of."""

    def on_samples(self, delivery: Delivery) -> None:
        """These samples are in the memory; of other ranks only their episodes come."""

    def on_step(self, batch: Batch, metrics: dict[str, Any]) -> None:
        """The agent was trained on `batch`; `metrics` is what its `train` returned."""

    def on_round(self, record: dict[str, Any]) -> None:
        """A round ends: add to its record, which is what `on_record` gets next."""

    def on_record(self, record: dict[str, Any]) -> None:
        """A record leaves: of a round, an episode, or the warm-up (`kind`); docs/metrics.md says what is in it."""
