"""Keeps the best episode that this machine's workers have driven."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import filelock
import numpy as np

from tmrl_like.config.loading import as_yaml
from tmrl_like.errors import ConfigError
from tmrl_like.experiment import Experiment
from tmrl_like.rollouts import Rollout
from tmrl_like.rollouts.hooks import Hook
from tmrl_like.types import TAKEN_OVER, ActionSource

log = logging.getLogger("tmrl_like.cli")


def hooks_of(experiment: Experiment) -> list[Hook]:
    """Return what a command's worker calls with each episode: the keeper of the best run, and the
    user's hook.
    """
    hooks: list[Hook] = []
    if experiment.worker.keep_best:
        hooks.append(BestRun(experiment.paths.best, as_yaml(experiment.as_data())))
    return hooks + (
        [experiment.on_worker_rollout] if experiment.on_worker_rollout is not None else []
    )


class BestRun:
    """A worker's hook that saves a rollout if it is better than the saved one. Several processes
    may share a file.

    Episodes that ended in a fault, that were taken over, or that are demonstrations do not count.
    """

    def __init__(self, file: Path, experiment: str) -> None:
        """Take the file's name; nothing is created until there is something to save.

        Args:
            file: where the best run is kept.
            experiment: the experiment as YAML, saved in the file.
        """
        self._file = file
        self._experiment = experiment
        self._known: tuple[float, ...] = ()  # a rank that the saved run is known to reach

    def __call__(self, rollout: Rollout) -> None:
        """Save a rollout if it is the best. Raises ValueError if its `progress` is not a number."""
        if (
            rollout.fault
            or np.isin(rollout.sources, (ActionSource.EXPERT, *TAKEN_OVER)).any()
            or rollout.rank <= self._known
        ):
            return
        if np.isnan(rollout.rank).any():
            raise ValueError("the environment's `progress` is not a number")
        try:
            self._keep(rollout)
        except OSError as error:
            log.error("cannot keep the best run in %s: %s; acting goes on", self._file, error)

    def _keep(self, rollout: Rollout) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self._file.with_name(".lock")):
            old = self._saved() if self._file.is_file() else None
            if old is not None:
                self._known = old.rank
                if rollout.rank <= old.rank:
                    return
            dataclasses.replace(rollout, experiment=self._experiment).save(self._file)
            self._known = rollout.rank
        before = "" if old is None else f", before: {old}"
        log.info("record: %s%s (policy %d)", rollout, before, rollout.policy_versions[-1])

    def _saved(self) -> Rollout | None:
        """Return the saved rollout; if it cannot be read, rename its file and return None."""
        try:
            return Rollout.load(self._file)
        except ConfigError as error:
            aside = self._file.replace(f"{self._file}.damaged")
            log.warning("%s; it is %s now", error, aside)
            return None
