"""What commands do first: set up this process, and find the policy to drive with."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tmrl_like.base.processes import cores_to_train_with
from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.paths import RunPaths
from tmrl_like.errors import ConfigError, PolicyError
from tmrl_like.experiment import Experiment

TO_DRIVE = ("env", "actor", "obs_preprocessor", "action_chain")
TO_COLLECT = (*TO_DRIVE, "sample_compressor")
TO_LEARN = ("actor", "agent", "memory", "obs_preprocessor", "agent_scheduler")


def parts_to_train(arguments: Arguments) -> tuple[str, ...]:
    """Return the parts of a training, with the environment only if nothing else says its spaces."""
    return (*TO_LEARN, "spaces" if arguments.experiment.document.data.get("spaces") else "env")


def prepare(arguments: Arguments, parts: tuple[str, ...], trains: bool = False) -> Experiment:
    """Set up this process, which may be one that trains, and import parts of the experiment."""
    experiment = arguments.experiment
    section = experiment.trainer if trains else experiment.worker
    threads = section.torch_threads or cores_to_train_with()
    os.environ |= dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)
    )
    experiment = experiment.with_code(parts)
    if trains:
        from tmrl_like.agents.process import tune_process

        tune_process(threads)
    elif "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    experiment.seed_generators(getattr(arguments, "name", None) or "")
    return experiment


def policy_that_drives(arguments: Arguments) -> Path:
    """Return the policy that --policy or the version after the @ names, else the newest of the run.

    Raises:
        ConfigError: there is none.
    """
    from tmrl_like.policies.policy_store import NEWEST, PolicyStore, find_policy

    paths = arguments.experiment.paths
    version, run = arguments.found.version, arguments.found.run
    if run is not None and (version or ("run_name",) not in dict(arguments.overrides)):
        paths = RunPaths.of(run)  # its folder may have been moved or renamed
    if arguments.policy is not None and version:
        raise ConfigError(
            f"--policy {arguments.policy} and {arguments.place} name two policies: leave one out"
        )
    store = PolicyStore(paths.policies)
    files = [path for path in (paths.trainer_model, paths.worker_model) if path.is_file()]
    try:
        if arguments.policy is not None:
            return find_policy(arguments.policy, store.folder).absolute()
        if files and not version:
            return max(files, key=lambda path: path.stat().st_mtime)
        if version or store.versions():
            return store.find(version or NEWEST)
    except PolicyError as error:
        raise ConfigError(
            f"--policy {arguments.policy}: {error}" if arguments.policy else str(error)
        ) from None
    without = "--untrained" if arguments.command == "test" else "--random"
    raise ConfigError(
        f"there is no policy at {paths.folder} (run {paths.run_name}): train one with `tmrl-like "
        f"run`, name one with --policy, or drive without one with {without}"
    )
