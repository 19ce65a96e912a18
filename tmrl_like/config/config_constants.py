"""The configuration for scripts: `import tmrl_like.config.config_constants as cfg`.

Importing it does nothing. The values are worked out when they are read, from `RUN_NAME` and the data
folder; set `cfg.RUN_NAME = "my_run"` (or the variable TMRL_LIKE_RUN) and all paths follow.

================================  ==================================================================
name                              meaning
================================  ==================================================================
RUN_NAME                          name of the run (str)
DATA_FOLDER                       everything tmrl_like keeps on this machine (Path)
RUN_FOLDER                        everything of this run
WEIGHTS_FOLDER                    weights of this run's workers and trainer
CHECKPOINTS_FOLDER                checkpoints of this run
DATASET_FOLDER                    recorded memories of this run
KEYS_FOLDER                       this machine's keys (the same for all runs)
MODEL_PATH_WORKER                 file with the newest weights that the worker received
MODEL_PATH_TRAINER                file with the newest weights that the trainer published
MODEL_PATH_SAVE_HISTORY           prefix of the files that `model_history` keeps
CHECKPOINT_PATH                   the trainer's checkpoint
SERVER_IP, SERVER_PORT            where the server is, unless a script says otherwise
================================  ==================================================================
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tmrl_like.config.paths import DEFAULT_RUN_NAME, RUN_VARIABLE, RunPaths, data_folder, default_keys_folder

RUN_NAME: str
DATA_FOLDER: Path
RUN_FOLDER: Path
WEIGHTS_FOLDER: Path
CHECKPOINTS_FOLDER: Path
DATASET_FOLDER: Path
KEYS_FOLDER: Path
MODEL_PATH_WORKER: Path
MODEL_PATH_TRAINER: Path
MODEL_PATH_SAVE_HISTORY: Path
CHECKPOINT_PATH: Path
SERVER_IP: str
SERVER_PORT: int


def _paths() -> RunPaths:
    return RunPaths(globals().get("RUN_NAME") or os.environ.get(RUN_VARIABLE) or DEFAULT_RUN_NAME, data_folder())


_VALUES: dict[str, Callable[[], Any]] = {
    "RUN_NAME": lambda: _paths().run_name,
    "DATA_FOLDER": data_folder,
    "RUN_FOLDER": lambda: _paths().folder,
    "WEIGHTS_FOLDER": lambda: _paths().weights,
    "CHECKPOINTS_FOLDER": lambda: _paths().checkpoints,
    "DATASET_FOLDER": lambda: _paths().folder / "dataset",
    "KEYS_FOLDER": default_keys_folder,
    "MODEL_PATH_WORKER": lambda: _paths().worker_model,
    "MODEL_PATH_TRAINER": lambda: _paths().trainer_model,
    "MODEL_PATH_SAVE_HISTORY": lambda: _paths().model_history,
    "CHECKPOINT_PATH": lambda: _paths().checkpoint,
    "SERVER_IP": lambda: "127.0.0.1",
    "SERVER_PORT": lambda: 7790,
}


def __getattr__(name: str) -> Any:
    if name not in _VALUES:
        raise AttributeError(f"module 'tmrl_like.config.config_constants' has no attribute {name!r}")
    return _VALUES[name]()
