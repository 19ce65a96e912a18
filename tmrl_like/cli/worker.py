"""`tmrl-like worker`, and how each command prepares what it runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tmrl_like.base.processes import cores_to_train_with
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.stopping import Stopper
from tmrl_like.config.loading import open_experiment, settings_of
from tmrl_like.config.settings import Settings
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.experiment import Experiment, experiment_of

PARTS = ("env", "actor", "sample_compressor", "obs_preprocessor")


def main(arguments: Arguments) -> int:
    """Collect until a stop is requested."""
    stopper = Stopper(arguments.supervised)
    experiment = prepare(arguments, "worker", (*PARTS, "on_worker_rollout", "takeover"))
    from tmrl_like.cli.best import hooks_of

    more = {
        "name": arguments.name,
        "policy": None if arguments.policy is None else find_policy(experiment, arguments.policy),
        "on_rollout": hooks_of(experiment),
    }
    with experiment.make_worker(supervised=arguments.supervised, **more) as worker:
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
    document = open_experiment(arguments.experiment, arguments.overrides)
    settings = settings_of(document)
    set_up_logging(getattr(arguments, "name", None) or role, arguments.log_level, arguments.supervised)
    threads = (settings.trainer if role == "trainer" else settings.worker).torch_threads
    threads = threads or cores_to_train_with()
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    experiment = experiment_of(document, parts)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    experiment.seed_generators()
    return experiment


def find_policy(settings: Settings, given: str | None = None) -> Path:
    """The policy that is given, else the newest weights of the run; raises ConfigError where there is none."""
    paths = settings.paths
    if given is not None:
        from tmrl_like.policies.policy_store import find_policy

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
