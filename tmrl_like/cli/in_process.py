"""`tmrl-like run --in-process`: server, trainer and environments in one thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.best import hooks_of
from tmrl_like.cli.trainer import train
from tmrl_like.experiment import Experiment
from tmrl_like.trainer.trainer import Trainer

_OF_WORKER = ("sample_compressor", "obs_preprocessor", "takeover", "on_worker_rollout")
_PARTS = ("env", "actor", "agent", "memory", "agent_scheduler", *_OF_WORKER)


def main(arguments: Arguments) -> int:
    """Train until the epochs or the minutes are over."""
    return train(arguments, _PARTS, _make)


def _make(experiment: Experiment, **how: Any) -> AbstractContextManager[Trainer]:
    return experiment.make_in_process({"on_rollout": hooks_of(experiment)}, **how)
