"""`tmrl-like worker`, and the worker that `test`, `benchmark` and `check` drive."""

from __future__ import annotations

import dataclasses
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tmrl_like.base.processes import cores_to_train_with
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.stopping import Stopper
from tmrl_like.config.experiment import Experiment, Settings
from tmrl_like.config.loading import load_experiment, load_settings
from tmrl_like.config.run_lock import use_run
from tmrl_like.errors import ConfigError, PolicyError

if TYPE_CHECKING:
    from tmrl_like.worker.worker import RolloutWorker

PARTS = ("env", "actor", "sample_compressor", "obs_preprocessor")


def main(arguments: Arguments) -> int:
    """Collect until a stop is requested."""
    stopper = Stopper(arguments.supervised)
    experiment = prepare(arguments, "worker", (*PARTS, "on_worker_rollout", "takeover"))
    from tmrl_like.cli.best import hooks_of

    more = {
        "name": arguments.name,
        "policy": None if arguments.policy is None else find_policy(experiment, arguments.policy),
        "on_rollout": hooks_of(arguments, experiment),
    }
    used = use_run(experiment.paths, "worker", supervised=arguments.supervised)
    with used, make_worker(experiment, **more) as worker:
        stopper.on_stop = worker.stop
        section, verbose = experiment.worker, not arguments.supervised
        if section.synchronous and not arguments.expert:
            worker.run_synchronous(
                test_episode_interval=section.test_episode_interval,
                initial_steps=max(1, experiment.trainer.start_training),
                end_episodes=False,
                verbose=verbose,
            )
        else:
            worker.run(section.test_episode_interval, verbose=verbose, expert=arguments.expert)
    return stopper.exit_code


def prepare(arguments: Arguments, role: str, parts: tuple[str, ...] = PARTS) -> Experiment:
    """Everything that comes before a role's first object: log lines, threads, the experiment, seeds."""
    settings = load_settings(arguments.experiment, arguments.overrides)
    set_up_logging(getattr(arguments, "name", None) or role, arguments.log_level, arguments.supervised)
    threads = (settings.trainer if role == "trainer" else settings.worker).torch_threads
    threads = threads or cores_to_train_with()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    from tmrl_like.policies.loading import IN_NUMPY

    instead = {} if "agent" in parts else IN_NUMPY  # an agent trains in torch
    experiment = load_experiment(arguments.experiment, arguments.overrides, parts, instead)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    if experiment.seed is not None:
        import numpy as np

        random.seed(experiment.seed)
        np.random.seed(experiment.seed)
        if torch is not None:
            torch.manual_seed(experiment.seed)
    return experiment


def make_worker(experiment: Experiment, **more: Any) -> RolloutWorker:
    """The worker of an experiment; `more` are further or other arguments of `RolloutWorker`."""
    from tmrl_like.worker.worker import RolloutWorker

    section, paths = experiment.worker, experiment.paths
    usual = {
        "sample_compressor": experiment.sample_compressor,
        "model_path": paths.worker_model,
        "model_path_history": paths.model_history,
        "obs_preprocessor": experiment.obs_preprocessor,
        "crc_debug": experiment.crc_debug,
        "seed": experiment.seed,
        "takeover": experiment.takeover,
        "options": dataclasses.replace(section, spool=paths.spool) if section.spool is True else section,
    }
    return RolloutWorker(experiment.env, experiment.actor, **experiment.server.dialled | usual | more)


def find_policy(settings: Settings, given: str | None = None) -> Path:
    """The policy that is given, else the newest weights of the run; raises ConfigError where there is none."""
    paths = settings.paths
    if given is not None:
        from tmrl_like.policies.store import find_policy

        try:
            return find_policy(given, paths.policies)
        except PolicyError as error:
            raise ConfigError(f"--policy {given}: {error}") from None
    found = [path for path in (paths.trainer_model, paths.worker_model) if path.is_file()]
    if not found:
        raise ConfigError(
            f"there is no policy at {paths.folder} (run {settings.run_name}): train one with `tmrl-like run`, name one "
            "with --policy, or drive an untrained one with --untrained"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def make_standalone(experiment: Experiment, policy: Path | None, **more: Any) -> RolloutWorker:
    """A worker without a server, driving with the weights of a file or, with None, untrained."""
    return make_worker(experiment, standalone=True, model_path=policy, **more)
