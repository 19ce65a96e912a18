"""`tmrl-like test`: how good is a policy?"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from tmrl_like.cli.app import INTERRUPTED
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import SUMMARY_COLUMNS, print_table, summary_row
from tmrl_like.cli.video import Video
from tmrl_like.cli.worker import make_standalone, prepare
from tmrl_like.config.experiment import Settings
from tmrl_like.errors import ConfigError
from tmrl_like.types import EpisodeStats
from tmrl_like.worker.worker import RolloutWorker


def main(arguments: Arguments) -> int:
    """Run test episodes, and show their returns."""
    stopper = Stopper(arguments.supervised)
    experiment = prepare(arguments, "test", ("env", "actor", "obs_preprocessor"))
    policy = None if arguments.untrained else find_policy(experiment, arguments.policy)
    film = Video(arguments.video) if arguments.video else contextlib.nullcontext()
    name = "an untrained policy" if policy is None else f"the policy {policy}"
    with film as video, make_standalone(experiment, policy) as worker:
        episodes = _drive(worker, arguments.episodes, arguments.supervised, video)
    if not arguments.supervised and episodes:
        print_table(f"test of {name}", SUMMARY_COLUMNS, [summary_row("", episodes)])
        env = worker.loop.env
        if env.faults:
            print(f"faults of the environment: {env.faults}; rebuilt: {env.rebuilds}")
    return INTERRUPTED if stopper.requested else 0


def _drive(worker: RolloutWorker, number: int, supervised: bool, video: Video | None) -> list[EpisodeStats]:
    """Run `number` test episodes, or as many as there are before Ctrl-C; the first one is filmed."""
    episodes: list[EpisodeStats] = []
    film = None if video is None else lambda: video.shoot(worker.env)
    with contextlib.suppress(KeyboardInterrupt):
        while len(episodes) < number:
            episode = worker.run_episode(after_step=None if episodes else film)
            episodes.append(episode)
            ending = f"fault: {episode.fault}" if episode.fault else "terminated" if episode.terminated else "truncated"
            took = f"{episode.duration_s:.2f} s, {episode.overruns} overruns, {ending}"
            shown = f"{len(episodes)}: return {episode.return_:.3f} in {episode.steps} steps, {took}"
            print("episode", msgspec.json.encode(episode).decode() if supervised else shown, flush=True)
    return episodes


def find_policy(settings: Settings, given: str | None = None) -> Path:
    """The file that is given, else the newest weights of the run; raises ConfigError where there is none."""
    paths = settings.paths
    candidates = [Path(given)] if given else [paths.trainer_model, paths.worker_model]
    found = [path for path in candidates if path.is_file()]
    if not found:
        where = candidates[0] if given else f"{paths.folder} (run {settings.run_name})"
        raise ConfigError(
            f"there is no policy at {where}: train one with `tmrl-like run`, name a file with --policy, or drive an "
            "untrained one with --untrained"
        )
    return max(found, key=lambda path: path.stat().st_mtime)
