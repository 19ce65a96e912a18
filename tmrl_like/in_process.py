"""Everything in one process and one thread: server, environments and trainer take turns."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from tmrl_like.server.server import Server
from tmrl_like.trainer.schedule import TrainingOffline
from tmrl_like.trainer.trainer import Trainer
from tmrl_like.transport import LOCALHOST, ONE_THREAD
from tmrl_like.types import SampleCompressor
from tmrl_like.worker.options import WorkerOptions
from tmrl_like.worker.worker import RolloutWorker


def run_in_process(
    training_cls: Callable[[], TrainingOffline],
    env_cls: Callable[[], Any],
    actor_module_cls: Callable[..., Any],
    sample_compressor: SampleCompressor | None = None,
    *,
    seed: int | None = None,
    test_episode_interval: int = 0,
    worker: Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
) -> TrainingOffline:
    """Train in the calling thread alone, where a debugger steps from the environment to the learner; blocks.

    Samples and policies go the whole way that they go over a network. Gathering and training are in lockstep: whenever
    training waits for samples, an environment makes a step. With a seed, an environment that follows from its own seed
    gives the same parameters bit for bit, on one machine's CPU.

    Args:
        training_cls: as `Trainer`'s.
        env_cls: as `RolloutWorker`'s; it must be able to stand still.
        actor_module_cls: as `RolloutWorker`'s.
        sample_compressor: as `RolloutWorker`'s.
        seed: of the environments, the memory and the generators of Python, numpy and torch; None: nothing is seeded.
        test_episode_interval: as `RolloutWorker.run`'s.
        worker: further arguments of `RolloutWorker`.
        trainer: further arguments of `Trainer`.

    Returns:
        The training, at its end: the epochs are done, or it was interrupted (Ctrl-C).

    Raises:
        ConfigError: the environment runs in real time, or the ratio is no finite number.
        EnvironmentFaultError: the environment fails again and again.
    """
    if seed is not None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    def make_trainer(**where: Any) -> Trainer:
        made = Trainer(training_cls, **where, **(trainer or {}))
        if seed is not None and made.training.total_updates == 0:
            made.training.memory.seed(seed)
        return made

    def make_worker(**where: Any) -> RolloutWorker:
        arguments: dict[str, Any] = {"model_path": None, "seed": seed} | dict(worker or {}) | where
        return RolloutWorker(env_cls, actor_module_cls, sample_compressor, **arguments)

    with ExitStack() as closing:
        options = (worker or {}).get("options") or WorkerOptions()
        trainer_ = connected(closing, make_trainer, make_worker, options, test_episode_interval)
        trainer_.run()
        return trainer_.training


def connected(
    closing: ExitStack,
    make_trainer: Callable[..., Trainer],
    make_worker: Callable[..., RolloutWorker],
    options: WorkerOptions,
    test_episode_interval: int,
    verbose: bool = False,
) -> Trainer:
    """A trainer that has a server and a worker take their turns; `closing` closes them."""
    server = closing.enter_context(Server(0, host=LOCALHOST, transport=ONE_THREAD))
    where = {"server_ip": LOCALHOST, "server_port": server.address[1], "transport": ONE_THREAD, "limits": None}
    trainer = closing.enter_context(make_trainer(**where))
    options = dataclasses.replace(options, own_thread=False)
    worker = closing.enter_context(make_worker(**where, options=options))
    steps = worker.steps(test_episode_interval, verbose)
    assert worker.link is not None
    link = worker.link

    def gather(is_awaited: bool) -> None:
        trainer.link.session.turn()
        server.turn()
        link.turn()  # the newest policy is there
        if is_awaited or not trainer.training.pacer.in_lockstep:  # recorded samples let training go on without any
            next(steps)
        link.turn()
        server.turn()
        trainer.link.session.turn()  # … and so are the samples

    trainer.link.gather = gather
    return trainer
