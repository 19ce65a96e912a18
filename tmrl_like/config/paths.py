"""Folders and files of this machine, as functions of two things: a root and a run's name.

Nothing here touches the disk.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path

ROOT_VARIABLE = "TMRL_LIKE_HOME"
RUN_VARIABLE = "TMRL_LIKE_RUN"
EXPERIMENT_VARIABLE = "TMRL_LIKE_EXPERIMENT"


class RunPath(enum.Enum):
    """What a path argument is when it is left out."""

    OF_RUN = "the file of the run that `config_constants` names when the constructor is called"


def data_folder() -> Path:
    """Everything tmrl_like keeps: $TMRL_LIKE_HOME, else ~/.tmrl_like."""
    return Path(os.environ.get(ROOT_VARIABLE) or Path.home() / ".tmrl_like")


def default_keys_folder() -> Path:
    """This machine's keys."""
    return data_folder() / "keys"


@dataclass(frozen=True)
class RunPaths:
    """The files of one run. Another run name changes all of them.

    Attributes:
        run_name: names the run's folder.
        root: the data folder.
    """

    run_name: str
    root: Path

    @property
    def folder(self) -> Path:
        """Everything of this run."""
        return self.root / "runs" / self.run_name

    @property
    def users(self) -> Path:
        """Files of the processes that use the run now; outside its folder, which may be renamed."""
        return self.root / "in_use" / self.run_name

    @property
    def weights(self) -> Path:
        """Folder of the weights."""
        return self.folder / "weights"

    @property
    def worker_model(self) -> Path:
        """The newest weights that a worker of this run received."""
        return self.weights / "worker.safetensors"

    @property
    def trainer_model(self) -> Path:
        """The newest weights that the trainer published."""
        return self.weights / "trainer.safetensors"

    @property
    def model_history(self) -> Path:
        """Prefix of weights kept from time to time (`model_history`)."""
        return self.weights / "history" / "policy"

    @property
    def spool(self) -> Path:
        """Samples that workers of this machine keep on disk until the trainer has stored them."""
        return self.folder / "spool"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.folder / "checkpoints"

    @property
    def checkpoint(self) -> Path:
        """The whole training, for a restart."""
        return self.checkpoints / "training"

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.folder / "metrics.jsonl"
