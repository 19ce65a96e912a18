"""The configuration for scripts: `import tmrl_like.config.config_constants as cfg`.

Importing it does nothing. The values are worked out when they are read: what the script set
(`cfg.RUN_NAME = "my_run"`), else what a variable of the environment says, else what the experiment file says, if
`EXPERIMENT` names one, else a default. All paths of a run follow from `RUN_NAME`. Constructors take these values for
arguments that are left out.

================================  ==================================================================
name                              meaning
================================  ==================================================================
EXPERIMENT                        file of the experiment; None: there is none (TMRL_LIKE_EXPERIMENT)
RUN_NAME                          name of the run (TMRL_LIKE_RUN)
DATA_FOLDER                       everything tmrl_like keeps on this machine (TMRL_LIKE_HOME)
RUN_FOLDER                        everything of this run
WEIGHTS_FOLDER                    weights of this run's workers and trainer
CHECKPOINTS_FOLDER                checkpoints of this run
DATASET_FOLDER, DATASET_PATH      recorded memories of this run
KEYS_FOLDER                       this machine's keys (the same for all runs)
MODEL_PATH_WORKER                 file with the newest weights that the worker received
MODEL_PATH_TRAINER                file with the newest weights that the trainer published
POLICIES_FOLDER                   the trainer's policy store
MODEL_PATH_SAVE_HISTORY           prefix of the files that `model_history` keeps
MODEL_HISTORY                     a worker keeps every k-th policy received; 0: none
CHECKPOINT_PATH                   the trainer's checkpoint
SERVER_IP_FOR_WORKER              address that workers dial
SERVER_IP_FOR_TRAINER             address that the trainer dials
PORT                              the server's port
NB_WORKERS                        how many workers the server takes
RW_MAX_SAMPLES_PER_EPISODE        a longer episode is cut
CRC_DEBUG                         compare each rebuilt transition with the original
PROFILE_TRAINER                   print a profile after each round
WANDB_ENTITY, WANDB_PROJECT       where Weights & Biases keeps the run
WANDB_RUN_ID, WANDB_KEY           name of the run there; WANDB_API_KEY
================================  ==================================================================
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_like.config.experiment import Settings
from tmrl_like.config.paths import (
    EXPERIMENT_VARIABLE,
    RUN_VARIABLE,
    RunPath,
    RunPaths,
    data_folder,
    default_keys_folder,
)


def path_of_run(path: str | Path | RunPath | None, name: str) -> Path | None:
    """A path argument of a constructor; left out, it is the constant called `name`."""
    chosen: str | Path | None = _read(name) if isinstance(path, RunPath) else path
    return None if chosen is None else Path(chosen)


def _settings() -> Settings:
    experiment = _read("EXPERIMENT")
    if experiment is None:
        return Settings()
    from tmrl_like.config.loading import load_settings

    return load_settings(experiment)


def _read(name: str) -> Any:
    return getattr(sys.modules[__name__], name)


def _paths() -> RunPaths:
    return RunPaths(_read("RUN_NAME"), data_folder())


_VALUES: dict[str, Callable[[], Any]] = {
    "EXPERIMENT": lambda: os.environ.get(EXPERIMENT_VARIABLE) or None,
    "RUN_NAME": lambda: os.environ.get(RUN_VARIABLE) or _settings().run_name,
    "DATA_FOLDER": data_folder,
    "RUN_FOLDER": lambda: _paths().folder,
    "WEIGHTS_FOLDER": lambda: _paths().weights,
    "CHECKPOINTS_FOLDER": lambda: _paths().checkpoints,
    "DATASET_FOLDER": lambda: _paths().folder / "dataset",
    "DATASET_PATH": lambda: _paths().folder / "dataset",
    "KEYS_FOLDER": default_keys_folder,
    "MODEL_PATH_WORKER": lambda: _paths().worker_model,
    "MODEL_PATH_TRAINER": lambda: _paths().trainer_model,
    "POLICIES_FOLDER": lambda: _paths().policies,
    "MODEL_PATH_SAVE_HISTORY": lambda: _paths().model_history,
    "MODEL_HISTORY": lambda: _settings().worker.model_history,
    "CHECKPOINT_PATH": lambda: _paths().checkpoint,
    "SERVER_IP_FOR_WORKER": lambda: _settings().server.host,
    "SERVER_IP_FOR_TRAINER": lambda: _settings().server.host,
    "PORT": lambda: _settings().server.port,
    "NB_WORKERS": lambda: _settings().server.max_workers,
    "RW_MAX_SAMPLES_PER_EPISODE": lambda: _settings().worker.max_samples_per_episode,
    "CRC_DEBUG": lambda: _settings().crc_debug,
    "PROFILE_TRAINER": lambda: _settings().trainer.profiling,
    "WANDB_ENTITY": lambda: _settings().trainer.wandb_entity,
    "WANDB_PROJECT": lambda: _settings().trainer.wandb_project,
    "WANDB_RUN_ID": lambda: _settings().trainer.wandb_run_id or _read("RUN_NAME"),
    "WANDB_KEY": lambda: os.environ.get("WANDB_API_KEY"),
}


def __getattr__(name: str) -> Any:
    if name not in _VALUES:
        raise AttributeError(f"module 'tmrl_like.config.config_constants' has no attribute {name!r}")
    return _VALUES[name]()
