"""`tmrl-like test`: how good is a policy? With `--video` also: what did an episode look like?"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tmrl_like.cli.app import INTERRUPTED
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import SUMMARY_COLUMNS, print_table, summary_row
from tmrl_like.cli.worker import find_policy, make_standalone, prepare
from tmrl_like.envs.vision import load_opencv
from tmrl_like.errors import ConfigError
from tmrl_like.types import EpisodeStats
from tmrl_like.worker.worker import RolloutWorker

_FPS = 30.0  # of an environment that says nothing about its own
_SMALLEST_PX = 384  # smaller pictures are enlarged


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


class Video:
    """An MP4 file that grows by one picture with each `shoot`. It is there from the first one on."""

    def __init__(self, file: str | Path) -> None:
        """Prepare to overwrite a file, with OpenCV; ConfigError: no such folder."""
        self._cv2 = load_opencv()
        self.file = Path(file)
        if self.file.suffix != ".mp4" or not self.file.parent.is_dir():
            raise ConfigError(f"--video {file}: expected a file name ending in .mp4, in a folder that exists")
        self._writer: Any = None

    def shoot(self, env: Any) -> None:
        """Add what `render` shows now, uint8 [H, W, 3] RGB; ConfigError: no picture, or the file cannot be written."""
        picture = self._cv2.cvtColor(_picture_of(env), self._cv2.COLOR_RGB2BGR)
        times = -(-_SMALLEST_PX // min(picture.shape[:2]))
        if times > 1:
            picture = self._cv2.resize(picture, None, fx=times, fy=times, interpolation=self._cv2.INTER_NEAREST)
        if self._writer is None:
            codec, size = self._cv2.VideoWriter_fourcc(*"mp4v"), (picture.shape[1], picture.shape[0])
            self._writer = self._cv2.VideoWriter(str(self.file), codec, _pictures_per_s(env), size)
            if not self._writer.isOpened():
                raise ConfigError(f"--video {self.file}: OpenCV cannot write there")
        self._writer.write(picture)

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._writer is not None:
            self._writer.release()


def _picture_of(env: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    try:
        picture = env.render()
    except Exception as error:  # the user's code, or no code at all
        raise _no_picture(f"raised {type(error).__name__}" + f" ({error})" * bool(str(error))) from error
    if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
        raise _no_picture(f"returned {type(picture).__name__}")
    return picture


def _no_picture(found: str) -> ConfigError:
    return ConfigError(
        f"--video needs a picture, uint8 [height, width, 3], and the environment's render() {found}: "
        "Gymnasium's own want env.init_args.gym_kwargs: {render_mode: rgb_array}; yours wants "
        "a render() that returns one"
    )


def _pictures_per_s(env: Any) -> float:
    """One picture is taken per step."""
    time_step_s = getattr(env, "time_step_s", None)
    return 1.0 / time_step_s if time_step_s else float((getattr(env, "metadata", None) or {}).get("render_fps", _FPS))
