"""The configuration for scripts: `import tmrl_like.config.config_constants as cfg`.

Importing it does nothing. Each value is determined when it is read: what the script set
(`cfg.RUN_NAME = "my_run"`), else an environment variable, else the experiment file, if `EXPERIMENT`
names one, else a default. All paths of a run follow from `RUN_NAME`. Constructors take these values
for arguments that are left out.

================================  ==================================================================
name                              meaning
================================  ==================================================================
EXPERIMENT                        file of the experiment, or None (TMRL_LIKE_EXPERIMENT)
RUN_NAME                          name of the run (TMRL_LIKE_RUN)
DATA_FOLDER                       folder of all files of tmrl_like on this machine (TMRL_LIKE_HOME)
RUN_FOLDER                        folder of this run
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
SERVER_IP_FOR_WORKER              address that workers connect to
SERVER_IP_FOR_TRAINER             address that the trainer connects to
PORT                              the server's port
NB_WORKERS                        how many workers the server accepts
RW_MAX_SAMPLES_PER_EPISODE        a longer episode is cut
CRC_DEBUG                         compare each rebuilt transition with the original
PROFILE_TRAINER                   print a profile after each round
WANDB_ENTITY, WANDB_PROJECT       where Weights & Biases keeps the run
WANDB_RUN_ID, WANDB_KEY           name of the run there; API key (WANDB_API_KEY)
================================  ==================================================================
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_like.base.folders import data_folder
from tmrl_like.config.paths import RunPath, RunPaths
from tmrl_like.config.settings import Settings


def path_of_run(path: str | Path | RunPath | None, name: str) -> Path | None:
    """Return a path argument of a constructor; if it was left out, the constant called `name`."""
    chosen: str | Path | None = _read(name) if isinstance(path, RunPath) else path
    return None if chosen is None else Path(chosen)


def _settings() -> Settings:
    experiment = _read("EXPERIMENT")
    if experiment is None:
        return Settings()
    from tmrl_like.config.loading import open_experiment, settings_of

    return settings_of(open_experiment(experiment))


def _read(name: str) -> Any:
    return getattr(sys.modules[__name__], name)


_OF_PATHS = {
    "RUN_FOLDER": "folder",
    "WEIGHTS_FOLDER": "weights",
    "CHECKPOINTS_FOLDER": "checkpoints",
    "DATASET_FOLDER": "dataset",
    "DATASET_PATH": "dataset",
    "MODEL_PATH_WORKER": "worker_model",
    "MODEL_PATH_TRAINER": "trainer_model",
    "POLICIES_FOLDER": "policies",
    "MODEL_PATH_SAVE_HISTORY": "model_history",
    "CHECKPOINT_PATH": "checkpoint",
}
_OF_SETTINGS = {
    "MODEL_HISTORY": "worker.model_history",
    "SERVER_IP_FOR_WORKER": "server.host",
    "SERVER_IP_FOR_TRAINER": "server.host",
    "PORT": "server.port",
    "NB_WORKERS": "server.max_workers",
    "RW_MAX_SAMPLES_PER_EPISODE": "worker.max_samples_per_episode",
    "CRC_DEBUG": "crc_debug",
    "PROFILE_TRAINER": "trainer.profiling",
    "WANDB_ENTITY": "trainer.wandb_entity",
    "WANDB_PROJECT": "trainer.wandb_project",
}
_OTHERS: dict[str, Callable[[], Any]] = {
    "EXPERIMENT": lambda: os.environ.get("TMRL_LIKE_EXPERIMENT") or None,
    "RUN_NAME": lambda: os.environ.get("TMRL_LIKE_RUN") or _settings().run_name,
    "DATA_FOLDER": data_folder,
    "KEYS_FOLDER": lambda: Path(_read("DATA_FOLDER")) / "keys",
    "WANDB_RUN_ID": lambda: _settings().trainer.wandb_run_id or _read("RUN_NAME"),
    "WANDB_KEY": lambda: os.environ.get("WANDB_API_KEY"),
}


def __getattr__(name: str) -> Any:
    if name in _OF_PATHS:
        return getattr(RunPaths(_read("RUN_NAME"), _read("DATA_FOLDER")), _OF_PATHS[name])
    if name in _OF_SETTINGS:
        return operator.attrgetter(_OF_SETTINGS[name])(_settings())
    if name in _OTHERS:
        return _OTHERS[name]()
    raise AttributeError(f"module 'tmrl_like.config.config_constants' has no attribute {name!r}")
