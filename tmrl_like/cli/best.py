"""The best run that a machine's workers have driven: kept when a record falls, and drawn."""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray

from tmrl_like.base.files import link_atomically
from tmrl_like.base.text import one_line
from tmrl_like.cli.arguments import Arguments
from tmrl_like.config.document import find_experiment
from tmrl_like.config.experiment import Experiment
from tmrl_like.config.loading import dump_experiment
from tmrl_like.errors import ConfigError
from tmrl_like.metrics.curves import new_figure
from tmrl_like.rollouts import Rollout, time_gained
from tmrl_like.rollouts.hooks import Hook
from tmrl_like.types import TAKEN_OVER, ActionSource

log = logging.getLogger("tmrl_like.worker")

BEFORE = "before.npz"  # the best run before, beside the best run

_DRAW_EVERY_S = 60.0


def hooks_of(arguments: Arguments, experiment: Experiment) -> list[Hook]:
    """What a command's worker calls with each episode: what keeps the best run, and the user's hook."""
    hooks: list[Hook] = []
    if experiment.worker.keep_best:
        text = dump_experiment(arguments.experiment, arguments.overrides, ())
        hooks.append(BestRun(experiment.paths.best, text, str(Path(find_experiment(arguments.experiment)).resolve())))
    return hooks + ([experiment.on_worker_rollout] if experiment.on_worker_rollout is not None else [])


class BestRun:
    """Keeps a rollout that is better than the one that is kept; several processes may share one. A worker's hook.

    Episodes that ended in a fault, in which somebody took over, and demonstrations, do not count.
    """

    def __init__(self, file: Path, experiment: str, experiment_file: str, draw: Callable[[Path], None] | None = None):
        """Nothing is made until there is something to keep.

        Args:
            file: where the best run is kept; the one before goes to `before.npz` beside it.
            experiment: goes into the file: the experiment, as YAML.
            experiment_file: likewise, its path.
            draw: draws the picture of a best run, in a thread of its own; None: in a process of its own.
        """
        self._file = file
        self._more: dict[str, Any] = {"experiment": experiment, "experiment_file": experiment_file}
        self._known: tuple[float, ...] = ()  # a rank that the best run has at least
        self._draw = draw_in_process if draw is None else draw
        self._drawing: threading.Timer | None = None
        self._drawn_at = -_DRAW_EVERY_S

    def __call__(self, rollout: Rollout) -> None:
        """Take a rollout; OSError: it cannot be kept."""
        if (
            rollout.fault
            or np.isin(rollout.sources, (ActionSource.EXPERT, *TAKEN_OVER)).any()
            or rollout.rank <= self._known
        ):
            return
        if np.isnan(rollout.rank).any():
            raise ValueError("the environment's `progress` is not a number")
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(self._file.with_name(".lock")):
            old = Rollout.load(self._file) if self._file.is_file() else None
            if old is not None:
                self._known = old.rank
                if rollout.rank <= old.rank:
                    return
                link_atomically(self._file, self._file.with_name(BEFORE))
            dataclasses.replace(rollout, **self._more).save(self._file)
            self._known = rollout.rank
        log.info("record: %s%s (policy %d)", rollout, advantage(rollout, old), rollout.policy_versions[-1])
        self._draw_soon(rollout, old)

    def _draw_soon(self, new: Rollout, old: Rollout | None) -> None:
        """Have a picture drawn, now or a minute after the one before; what is drawn then is the newest."""
        if old is None or "distance" not in new.info or "distance" not in old.info or self._drawing is not None:
            return
        self._drawing = threading.Timer(max(0.0, self._drawn_at + _DRAW_EVERY_S - time.monotonic()), self._draw_now)
        self._drawing.daemon = True
        try:
            self._drawing.start()
        except RuntimeError as error:  # no thread is left: with the next record
            self._drawing = None
            log.warning("no picture of the best run: %s", error)

    def _draw_now(self) -> None:
        self._drawn_at, self._drawing = time.monotonic(), None
        try:
            self._draw(self._file)
        except OSError as error:
            log.warning("no picture of the best run: %s", error)


def advantage(new: Rollout, old: Rollout | None, name: str = "before") -> str:
    """By what a rollout is better than the old one, to stand behind what it came to; empty: they are not compared."""
    if old is None or len(new.rank) != len(old.rank):
        return ""
    if new.rank == old.rank:
        return f", equal to {name}"
    better, worse = "further", "less"
    if new.progress is None:
        by, form, better = new.return_ - old.return_, "{:.5g}", "more"
    elif new.took is None or old.took is None:
        by, form = min(new.progress, 1.0) - min(old.progress or 0.0, 1.0), "{:.1%}"
    else:
        by, better, worse = old.took - new.took, "faster", "slower"
        form = "{:.2f} s" if new.time_step_s else "{:.0f} steps"
    return f", {form.format(abs(by))} {better if by > 0 else worse} than {name}"


def draw_in_process(file: Path) -> None:
    """Draw the picture of a best run beside it, in a process of its own, so that no control loop waits for it."""
    if importlib.util.find_spec("matplotlib") is None:
        return
    picture = file.with_name("record.png")
    done = subprocess.run(
        [sys.executable, "-m", "tmrl_like", "replay", str(file), "--picture", str(picture)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        check=False,
    )
    if done.returncode:
        log.warning("no picture of the best run: %s", done.stderr.decode(errors="replace").strip())


def plot(picture: Path, new: Rollout, old: Rollout) -> bool:
    """Draw over the way what one rollout won against another one and, where `position` is known, the track.

    Returns:
        False, with a line in the log: matplotlib is not installed.

    Raises:
        ConfigError: a rollout has no `distance`, they have no part of the way in common, or the picture
            cannot be written.
    """
    distance, gained = time_gained(new, old)
    if not len(distance):
        raise ConfigError("the two rollouts have no part of the way in common: there is nothing to compare")
    has_track = "position" in new.info and new.info["position"].ndim == 2
    figure = new_figure(12 if has_track else 7, 5)
    if figure is None:
        return False
    axes = figure.add_subplot(1, 1 + has_track, 1)
    axes.plot(distance, gained, color="tab:blue")
    axes.axhline(0.0, color="tab:gray", linewidth=0.8)
    unit = "s" if new.time_step_s else "steps"
    axes.set(title=f"{new}{advantage(new, old)}", xlabel="distance along the track", ylabel=f"ahead by, {unit}")
    if has_track:
        axes, limit = figure.add_subplot(1, 2, 2), max(float(np.abs(gained).max()), 1e-9)
        across, along = _seen_from_above(new.info["position"])
        colours = np.interp(new.info["distance"], distance, gained)
        dots = axes.scatter(across, along, c=colours, s=12, cmap="coolwarm_r", vmin=-limit, vmax=limit)
        axes.set(aspect="equal", xticks=[], yticks=[], title="ahead: blue, behind: red")
        figure.colorbar(dots, ax=axes, label=f"ahead by, {unit}")
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, dpi=120, format=picture.suffix[1:] or "png")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--picture {picture}: {one_line(error)}") from None
    return True


def _seen_from_above(position: NDArray[np.float32]) -> NDArray[np.float32]:
    """The two directions in which a way in space, [T, 2 or 3], is longest, [2, T]."""
    return position.T[np.sort(np.argsort(np.ptp(position, axis=0))[-2:])]
