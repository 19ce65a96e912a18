"""Whether training learns, told by each round: losses on what is held out, figures, and what the diagnosis says."""

from __future__ import annotations

import logging
import math
from typing import Any

from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.replay.contract import MemoryDataloading
from tmrl_like.trainer.diagnosis import Diagnosis
from tmrl_like.trainer.figures import ActorFigures, SampleFigures, same_noise
from tmrl_like.trainer.rewards import RecentRewards
from tmrl_like.trainer.watch import Listener
from tmrl_like.types import Batch, Delivery

log = logging.getLogger("tmrl_like.trainer")

_FIGURES_EVERY = 500  # training steps and samples


class LearningWatch(Listener):
    """Adds to each round the losses on held-out episodes, what the diagnosis says and, to some, what it goes by."""

    def __init__(
        self, agent: TrainingAgent, memory: MemoryDataloading, diagnosis: Diagnosis, rewards: RecentRewards
    ) -> None:
        self._agent, self._memory, self._diagnosis, self._rewards = agent, memory, diagnosis, rewards
        self._of_samples, self._of_actor = SampleFigures(), ActorFigures()
        self._batch: Batch | None = None  # trained on last
        self._measured_at: float = 0  # training steps and samples

    def on_samples(self, delivery: Delivery) -> None:
        self._of_samples.add(delivery.buffer)
        self._diagnosis.add(delivery.episodes)

    def on_step(self, batch: Batch, metrics: dict[str, Any]) -> None:
        self._batch = batch

    def on_round(self, record: dict[str, Any]) -> None:
        held_out = self._memory.sample_held_out()
        if held_out is not None:
            with same_noise(self._agent.device):  # training draws what it would draw without
                losses = self._agent.evaluate(held_out)
            record |= {f"{name}_held_out": float(loss) for name, loss in losses.items()}
        done = record["training_steps_total"] + record["env_steps_total"]
        if self._batch is not None and done - self._measured_at >= _FIGURES_EVERY:
            self._measured_at = done
            try:
                record |= self._of_samples.figures() | self._of_actor.figures(self._agent, self._batch)
            except Exception as error:  # the user's agent among others
                self._measured_at = math.inf
                log.warning("no figures of samples and actor: %s: %s; training goes on", type(error).__name__, error)
            self._rewards.widen(record)
            self._diagnosis.judge(record)
        record["learning"] = self._diagnosis.line
