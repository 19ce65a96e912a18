"""`tmrl-like run --in-process`: server, trainer and environments in one thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.best import hooks_of
from tmrl_like.cli.trainer import make_trainer, train
from tmrl_like.cli.worker import make_worker
from tmrl_like.config.experiment import Experiment
from tmrl_like.in_process import connected
from tmrl_like.metrics.sinks import Sink
from tmrl_like.trainer.trainer import Trainer

_OF_WORKER = ("sample_compressor", "obs_preprocessor", "takeover", "on_worker_rollout")
_PARTS = ("env", "actor", "agent", "memory", "agent_scheduler", *_OF_WORKER)


def main(arguments: Arguments) -> int:
    """Train until the epochs or the minutes are over."""
    return train(arguments, _PARTS, partial(_connected, arguments))


@contextmanager
def _connected(arguments: Arguments, experiment: Experiment, sinks: list[Sink]) -> Iterator[Trainer]:
    with ExitStack() as closing:
        yield connected(
            closing,
            partial(make_trainer, experiment, sinks, engine=None),
            partial(make_worker, experiment, name="worker", on_rollout=hooks_of(arguments, experiment)),
            dataclasses.replace(experiment.worker, spool=False),  # there is nothing that it could outlive
            experiment.worker.test_episode_interval,
            verbose=True,
        )
