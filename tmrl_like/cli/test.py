"""`tmrl-like test`: how good a policy is, how certain that is, and what it looks like."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tmrl_like.base.text import counted
from tmrl_like.cli.arguments import Arguments
from tmrl_like.cli.prepare import TO_DRIVE, policy_that_drives, prepare
from tmrl_like.cli.preview import enlarged
from tmrl_like.cli.stopping import Stopper
from tmrl_like.cli.tables import SUMMARY_COLUMNS, print_table, summary_row
from tmrl_like.cli.window import Window
from tmrl_like.envs.attributes import time_step_of
from tmrl_like.envs.supervision import StoppedError
from tmrl_like.envs.vision import Frame, load_opencv
from tmrl_like.errors import ConfigError
from tmrl_like.types import EpisodeStats
from tmrl_like.worker.worker import RolloutWorker

_FPS = 30.0  # for an environment that does not name its own
_DRAWS = 10_000

Returns: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]


def main(arguments: Arguments) -> int:
    """Run test episodes and show their returns."""
    if arguments.interval and arguments.episodes == 1:
        raise ConfigError("--interval: one return has no spread; expected --episodes 2 or more")
    stopper = Stopper(arguments.supervised)
    experiment = prepare(arguments, TO_DRIVE)
    experiment = dataclasses.replace(
        experiment, worker=dataclasses.replace(experiment.worker, envs=1)
    )
    is_supervised = bool(arguments.supervised)
    policy = None if arguments.untrained else policy_that_drives(arguments)
    usual = math.inf if arguments.window else 100 if arguments.interval else 10
    with contextlib.ExitStack() as closing:
        video = Video(arguments.video) if arguments.video else None
        if video is not None:
            closing.callback(video.close)
        window = closing.enter_context(Window(lambda: worker.stop())) if arguments.window else None
        worker = closing.enter_context(experiment.make_standalone(policy))

        def after_step() -> None:
            if window is not None:
                window.show(picture_of(worker.env))
            if video is not None and not episodes:
                video.shoot(worker.env)

        episodes: list[EpisodeStats] = []
        for episode in drive(worker, arguments.episodes or usual, is_supervised, after_step):
            episodes.append(episode)
    if not is_supervised and episodes:
        name = "an untrained policy" if policy is None else f"the policy {policy}"
        print_table(f"test of {name}", SUMMARY_COLUMNS, [summary_row("", episodes)])
        if arguments.interval and len(episodes) > 1:
            print(spread_of(np.array([episode.return_ for episode in episodes])))
    return stopper.exit_code


def drive(
    worker: RolloutWorker, number: float, supervised: bool, after_step: Callable[[], None]
) -> Iterator[EpisodeStats]:
    """Run test episodes and yield the reports of `number` that no fault of the environment ended;
    ends early on Ctrl-C or when the window is closed.

    Raises:
        EnvironmentFaultError: there were too many faults in a row.
    """
    count = 0
    with contextlib.suppress(KeyboardInterrupt, StoppedError):
        while count < number:
            episode = worker.run_episode(after_step=after_step)
            if not supervised:
                print(f"episode {count + 1}: {_described(episode)}")
            if episode.fault:
                continue
            if supervised:  # on a new line, since the user's code may leave one open
                print(f"\nepisode {msgspec.json.encode(episode).decode()}")
            count += 1
            yield episode


def _described(episode: EpisodeStats) -> str:
    ending = "terminated" if episode.terminated else "truncated"
    if episode.fault:
        ending = f"repeated because of a fault: {episode.fault}"
    return (
        f"return {episode.return_:.3f} in {counted(episode.steps, 'step')}, "
        f"{episode.duration_s:.2f} s, {counted(episode.overruns, 'overrun')}, {ending}"
    )


def spread_of(returns: Returns) -> str:
    """Return a line with a 95 % confidence interval of the mean, and extremes of the returns."""
    low, high = confidence_interval(returns)
    lowest, median, highest = np.percentile(returns, (0, 50, 100))
    return (
        f"mean return, 95 % confidence: {low:.5g} to {high:.5g}; lowest {lowest:.5g}, median "
        f"{median:.5g}, highest {highest:.5g}"
    )


def confidence_interval(returns: Returns) -> tuple[float, float]:
    """Return a 95 % confidence interval of the mean, by bootstrap: percentiles of the means of
    10,000 resamples (Efron 1979).
    """
    random = np.random.default_rng(0)
    means = [random.choice(returns, len(returns)).mean() for _ in range(_DRAWS)]
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


class Video:
    """An MP4 file to which each `shoot` adds a picture. The first picture creates it."""

    def __init__(self, file: str | Path) -> None:
        """Prepare to write or overwrite a file, with OpenCV.

        Raises:
            ConfigError: the name does not end in .mp4, or there is no such folder.
        """
        self._cv2 = load_opencv()
        self.file = Path(file)
        if self.file.suffix != ".mp4" or not self.file.parent.is_dir():
            raise ConfigError(
                f"--video {file}: expected a file name ending in .mp4, in a folder that exists"
            )
        self._writer: Any = None

    def shoot(self, env: Any) -> None:
        """Add what `render` shows now, uint8 [H, W, 3] RGB.

        Raises:
            ConfigError: there is no picture, or the file cannot be written.
        """
        picture = self._cv2.cvtColor(enlarged(picture_of(env)), self._cv2.COLOR_RGB2BGR)
        if self._writer is None:
            codec, rate = self._cv2.VideoWriter_fourcc(*"mp4v"), _pictures_per_s(env)
            self._size = picture.shape[1], picture.shape[0]
            self._writer = self._cv2.VideoWriter(str(self.file), codec, rate, self._size)
            if not self._writer.isOpened():
                raise ConfigError(f"--video {self.file}: OpenCV cannot write there")
        self._writer.write(self._cv2.resize(picture, self._size))  # it would skip another size

    def close(self) -> None:
        if self._writer is not None:
            self._writer.release()


def picture_of(env: Any) -> Frame:
    """Return what `render` shows now, uint8 [H, W, 3] RGB.

    Raises:
        ConfigError: there is no picture.
    """
    try:
        picture = env.render()
    except Exception as error:  # the user's code, or missing code
        raise _no_picture(
            f"raised {type(error).__name__}" + f" ({error})" * bool(str(error))
        ) from error
    if (
        not isinstance(picture, np.ndarray)
        or picture.dtype != np.uint8
        or picture.shape[2:] != (3,)
    ):
        raise _no_picture(f"returned {type(picture).__name__}")
    return picture


def _no_picture(found: str) -> ConfigError:
    return ConfigError(
        f"there is nothing to draw: the environment's render() {found}, expected a picture, uint8 "
        "[height, width, 3]; Gymnasium's own want --env.gym_kwargs '{render_mode: rgb_array}'; "
        "yours wants a render() that returns one"
    )


def _pictures_per_s(env: Any) -> float:
    """Return the frame rate of a film with one picture per step."""
    time_step_s = time_step_of(env)
    return (
        1.0 / time_step_s
        if time_step_s
        else float((getattr(env, "metadata", None) or {}).get("render_fps") or _FPS)
    )
