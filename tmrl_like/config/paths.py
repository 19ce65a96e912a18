"""Folders and files on this machine, derived from a data folder and a run's name.

Links are followed on the disk; nothing is written.
"""

from __future__ import annotations

import enum
import itertools
import os
import re
from pathlib import Path

from tmrl_like.base.folders import data_folder


class RunPath(enum.Enum):
    """Stands for a path argument that was left out."""

    OF_RUN = "the file of the run that `config_constants` names when the constructor is called"


def keys_folder(given: str | None = None) -> Path:
    """Return the given folder of keys, or this machine's default if None."""
    return Path(given).expanduser() if given else data_folder() / "keys"


class RunPaths:
    """The files of one run. Another run name changes all of them.

    Attributes:
        run_name: names the run's folder.
        folder: folder of this run.
        users: lock files of the processes that use the run now; outside its folder, which may be
            renamed. Two names that lead to one folder have the same.
        weights: folder of the weights.
        worker_model: the newest weights that a worker of this run received.
        trainer_model: the newest weights that the trainer published.
        policies: the policy store.
        model_history: prefix of the weights that `model_history` keeps from time to time.
        spool: samples that workers on this machine keep on disk until the trainer has stored them.
        checkpoints: folder of the checkpoints.
        checkpoint: the whole training, for a restart.
        dataset: recorded memories of this run, for scripts.
        metrics: one JSON object a line.
        log: what `tmrl-like run` and its parts have said.
        signals: what a person has told workers on this machine.
        best: the best run that workers on this machine have driven.
    """

    def __init__(self, run_name: str, root: str | Path, folder: Path | None = None) -> None:
        self.run_name = run_name
        root = Path(root)
        self.folder = folder or root / "runs" / run_name
        real = os.path.realpath(self.folder)
        real = real.removeprefix(os.path.join(os.path.realpath(root / "runs"), ""))
        self.users = root / "in_use" / re.sub(r"[/\\:]", "+", real)
        self.weights = self.folder / "weights"
        self.worker_model = self.weights / "worker.safetensors"
        self.trainer_model = self.weights / "trainer.safetensors"
        self.policies = self.folder / "policies"
        self.model_history = self.weights / "history" / "policy"
        self.spool = self.folder / "spool"
        self.checkpoints = self.folder / "checkpoints"
        self.checkpoint = self.checkpoints / "training"
        self.dataset = self.folder / "dataset"
        self.metrics = self.folder / "metrics.jsonl"
        self.log = self.folder / "run.log"
        self.signals = self.folder / "signals"
        self.best = self.folder / "best" / "rollout.npz"

    @classmethod
    def of(cls, folder: Path) -> RunPaths:
        """Return the files of the run in this folder; of the run in the data folder to which a link
        leads.
        """
        root, real, whole = data_folder(), os.path.realpath(folder), Path(os.path.abspath(folder))
        likely = (root / "runs" / name for name in (os.path.basename(real), whole.name))
        for run in itertools.chain(likely, (root / "runs").glob("*/")):
            if os.path.realpath(run) == real:
                return cls(run.name, root)
        return cls(whole.name, whole.parent.parent, whole)
