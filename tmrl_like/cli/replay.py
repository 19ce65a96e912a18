"""`tmrl-like replay`: the best run of a run, driven again or drawn."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import queue
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gymnasium

from tmrl_like.base import tree
from tmrl_like.cli.app import INTERRUPTED
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.best import BEFORE, advantage, plot
from tmrl_like.cli.logs import set_up_logging
from tmrl_like.cli.runs import folder_of
from tmrl_like.cli.stopping import Stopper
from tmrl_like.config.loading import Overrides, load_kept
from tmrl_like.config.paths import BEST
from tmrl_like.errors import ConfigError
from tmrl_like.policies.actions import action_problem
from tmrl_like.rollouts import Rollout


def main(arguments: Arguments) -> int:
    """Drive a best run again, or draw it."""
    set_up_logging("replay", arguments.log_level)
    file = find_best_run(arguments.place, arguments.overrides)
    best = Rollout.load(file)
    if arguments.picture is None:
        if arguments.against is not None:
            raise ConfigError("--against says what to draw a comparison with: give --picture FILE as well")
        return _drive(arguments, best, file)
    old = file.with_name(BEFORE) if arguments.against is None else find_best_run(arguments.against)
    if not old.is_file():
        raise ConfigError(
            f"{file} is the first best run: there is none before it to compare with; name one with --against"
        )
    picture = Path(arguments.picture)
    if plot(picture, best, Rollout.load(old)):
        print(f"picture: {picture}")
    return 0


def find_best_run(place: str, overrides: Overrides = ()) -> Path:
    """The file that a run's name, its folder, its experiment's YAML file or the file itself stands for.

    `overrides` are of the YAML file, where it is one: another `run_name`.

    Raises:
        ConfigError: there is none.
    """
    file = Path(place) if Path(place).suffix == ".npz" else folder_of(place, overrides) / BEST
    if not file.is_file():
        raise ConfigError(
            f"there is no best run at {file}: a worker of this machine keeps one as soon as it has driven an episode "
            "(worker.keep_best); PLACE is a run's name, its folder, or the YAML file of its experiment"
        )
    return file


class Inputs:
    """Stands in for an actor: gives a rollout's actions in order, whatever it sees; behind them, the last one."""

    extras: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self, rollout: Rollout, observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> None:
        """Begin at the beginning; ConfigError: they are no actions of this space."""
        steps, problem = range(len(rollout)), "they have another form"
        with contextlib.suppress(LookupError, TypeError):
            self._actions = [
                tree.map_leaves(lambda _, column, at=step: column[at], action_space, rollout.actions) for step in steps
            ]
            problem = next(filter(None, (action_problem(action, action_space) for action in self._actions)), "")
        if problem:
            raise ConfigError(f"the kept actions are none of this environment, whose are {action_space}: {problem}")
        self._step = 0

    def to_device(self, device: str) -> Inputs:
        """There is nothing to move."""
        return self

    def in_numpy(self) -> Inputs:
        """It is."""
        return self

    def reset(self) -> None:
        """Begin again."""
        self._step = 0

    def act_(self, obs: Any, test: bool = False) -> Any:
        """The next one."""
        self._step += 1
        return self._actions[min(self._step, len(self._actions)) - 1]


def _drive(arguments: Arguments, best: Rollout, file: Path) -> int:
    """Drive its inputs again, and print how far and how fast."""
    from tmrl_like.cli.test import Video
    from tmrl_like.cli.worker import make_standalone

    if not best.experiment:
        raise ConfigError(f"{file} says no experiment to drive it in: only the best runs of workers do")
    stopper = Stopper(supervised=False)
    experiment = load_kept(best.experiment, best.experiment_file, arguments.overrides, ("env",))
    section = dataclasses.replace(experiment.worker, envs=1, max_samples_per_episode=len(best))
    experiment = dataclasses.replace(experiment, actor=functools.partial(Inputs, best), worker=section)
    driven = queue.SimpleQueue[Rollout]()
    film = Video(arguments.video) if arguments.video else contextlib.nullcontext()
    print(f"the best run of {best.experiment_file}, {file}: {best}, policy {best.policy_versions[-1]}")
    with film as video, make_standalone(experiment, None, on_rollout=driven.put) as worker:
        shoot = None if video is None else lambda: video.shoot(worker.env)
        with contextlib.suppress(KeyboardInterrupt):
            for number in range(1, arguments.episodes + 1):
                episode = worker.run_episode(after_step=shoot if number == 1 else None)
                if episode.steps == 0:
                    print(f"episode {number}: fault: {episode.fault}", flush=True)
                    continue
                rollout = driven.get()
                came_to = f"{rollout}{advantage(rollout, best, 'the best run')}"
                how = f"fault: {episode.fault}" if episode.fault else f"{episode.overruns} overruns"
                print(
                    f"episode {number}: {came_to} (return {episode.return_:.5g} in {episode.steps} steps, {how})",
                    flush=True,
                )
    return INTERRUPTED if stopper.requested else 0
