"""A robot arm and a racing car learn: `learning.gif`.

    python docs/figures/learning_gif.py [--runs FOLDER]

It trains the experiments that ship, `robot` and `racing_lidar`, and then lets policies of the
beginning, the middle and the end drive. The environments are what ships, with their delays, noise
and rewards, but in simulated time, as for the environments' pages (tests/kit/simulated.py). With
`--runs` the runs are kept there, and one that is there is drawn without training. Needs the extras
`mujoco`, `box2d` and `plot`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tmrl_like import Experiment, load_policy
from tmrl_like.metrics.curves import averaged, new_figure
from tmrl_like.metrics.reading import read_records
from tmrl_like.policies.policy_store import PolicyStore

sys.path.append(str(Path(__file__).parents[2] / "tests"))
from kit.simulated import Racing, Robot, Simulated, SteppedRace, simulated

SEED = 0
FRAME_S = 0.06
STAGES_S = (4.0, 5.0, 9.0)  # how long each policy is seen
COLOURS = 255


class DrawnRace(SteppedRace):
    """The racing game, of which few pictures are drawn, and these as large as it has them."""

    def advance(self, ticks: int) -> None:
        """Of these pictures only the last one is drawn: nobody sees the others, and drawing is what
        takes time.
        """
        unseen = mock.patch.object(
            self._game._env, "_render", return_value=self._game.state["frame"]
        )
        with unseen:
            super().advance(ticks - 1)
        super().advance(min(ticks, 1))

    def picture(self) -> Any:
        """What the game draws before it makes a small picture of it, without its instruments, uint8
        [700, 700, 3].
        """
        import pygame

        return pygame.surfarray.array3d(self._game._env.surf).transpose(1, 0, 2)[:700, 150:850]


class Car(Racing):
    """`RacingEnv` in simulated time."""

    game_cls = DrawnRace

    def render(self) -> Any:
        return self.world.picture()


# -- training --------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Learner:
    """An experiment, and what is shown of it.

    Attributes:
        title: above its curve.
        name: of the experiment.
        env_cls: what its environment is without its clock.
        epochs: how long it is trained.
        halfway_s: after so much practice its second policy drives.
    """

    title: str
    name: str
    env_cls: type[Simulated]
    epochs: int
    halfway_s: float

    @functools.cached_property
    def experiment(self) -> Experiment:
        keys = {
            "worker.test_episode_interval": 2,
            "worker.keep_best": "false",
            "trainer.epochs": self.epochs,
        }
        keys |= {
            "trainer.update_model_interval": 100,
            "trainer.keep_policies": 10_000,
            "trainer.max_minutes": ".inf",
        }
        keys |= {"seed": SEED, "trainer.checkpoint": "false"}
        overrides = " ".join(f"{key}={value}" for key, value in keys.items())
        return simulated(self.name, overrides, self.env_cls)

    @property
    def step_s(self) -> float:
        return self.experiment.env.keywords["time_step_duration"]

    def train(self) -> None:
        """Train as `tmrl-like run --in-process` does."""
        with self.experiment.make_in_process() as trainer:
            trainer.run()

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [r for r in read_records(self.experiment.paths.metrics) if r["kind"] == kind]

    def episodes(self, test: bool) -> Any:
        """Minutes of practice and return of test episodes, or of training episodes, float64 [2,
        E].
        """
        episodes = [r for r in self.records("episode") if r["test"] == test]
        return np.array(
            [(r["env_steps_total"] * self.step_s / 60, r["return"]) for r in episodes]
        ).T

    def policies(self) -> list[tuple[float, Path]]:
        """Those that drive, with their seconds of practice: untrained, halfway, the last one."""
        store, rounds = PolicyStore(self.experiment.paths.policies), self.records("round")
        steps, samples = (
            [r[name] for r in rounds] for name in ("training_steps_total", "env_steps_total")
        )
        found = [
            (
                np.interp(card.training_steps, [0, *steps], [0, *samples]) * self.step_s,
                store.path(name),
            )
            for name, card in store.cards()
        ]
        return [min(found), min(found, key=lambda one: abs(one[0] - self.halfway_s)), max(found)]

    def film(self, policy_file: Path, duration_s: float) -> list[Any]:
        """What is seen while a policy drives, a picture for each step."""
        policy, env = load_policy(policy_file), self.experiment.env()
        pictures: list[Any] = []
        obs, ended = env.reset(seed=SEED)[0], False
        while len(pictures) * self.step_s < duration_s:
            pictures.append(env.render())
            if ended:
                pictures += pictures[-1:] * round(0.4 / self.step_s)
                obs, ended = env.reset()[0], False
                continue
            obs, _, terminated, truncated, _ = env.step(policy.act(obs))
            ended = terminated or truncated
        return pictures


# -- drawing ---------------------------------------------------------------------------------------


class Curve:
    """The returns over the practice, as far as they are known."""

    def __init__(self, axes: Any, learner: Learner) -> None:
        self._tests, self._training = learner.episodes(test=True), learner.episodes(test=False)
        (self._dots,) = axes.plot(
            *self._training, ".", color="0.7", ms=4, label="episodes while exploring"
        )
        (self._line,) = axes.plot(
            *self._tests, color="tab:blue", lw=2, label="test episodes, mean of the newest"
        )
        (self._now,) = axes.plot(*self._tests, "o", color="tab:red", ms=7)
        axes.set(xlabel="minutes of practice", ylabel="return of an episode")
        axes.set(xlim=axes.get_xlim(), ylim=axes.get_ylim())  # those of all episodes
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(learner.title, loc="left", weight="bold")

    def show(self, until_s: float) -> None:
        known, tests = (
            max(1, np.searchsorted(minutes, until_s / 60, side="right"))
            for minutes, _ in (self._training, self._tests)
        )
        minutes, means = self._tests[0], averaged(self._tests[1])
        self._dots.set_data(*self._training[:, :known])
        self._line.set_data(minutes[:tests], means[:tests])
        self._now.set_data(minutes[tests - 1 : tests], means[tests - 1 : tests])


def draw_gif(learners: list[Learner], file: Path) -> None:
    from PIL import Image

    figure = new_figure(8.0, 6.2)
    rows = figure.subplots(len(learners), 2, width_ratios=(1, 1.4))
    curves = [Curve(right, learner) for (_, right), learner in zip(rows, learners, strict=True)]
    frames = []
    for stage, duration_s in enumerate(STAGES_S):
        films = []
        for (left, _), curve, learner in zip(rows, curves, learners, strict=True):
            practice_s, policy = learner.policies()[stage]
            films.append(learner.film(policy, duration_s))
            curve.show(practice_s)
            left.set_axis_off()
            left.set_title(f"after {practice_s:.0f} s of practice" if stage else "untrained")
        figure.canvas.draw()
        still = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())[..., :3])
        for moment in range(round(duration_s / FRAME_S)):
            frames.append(still.copy())
            for (left, _), film, learner in zip(rows, films, learners, strict=True):
                picture = Image.fromarray(film[int(moment * FRAME_S / learner.step_s + 1e-6)])
                box = left.get_window_extent()
                side = int(min(box.width, box.height))
                corner = int(box.x0 + (box.width - side) / 2), int(still.height - box.y1)
                frames[-1].paste(picture.resize((side, side), Image.Resampling.LANCZOS), corner)
    # targets and the car, for all their few pixels
    rare = np.full((100, frames[0].width, 3), (255, 0, 0), np.uint8)
    few = Image.fromarray(
        np.vstack([rare, *(np.asarray(frame) for frame in frames[:: len(frames) // 8])])
    )
    palette = few.quantize(COLOURS, Image.Quantize.MEDIANCUT)
    first, *others = (frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames)
    first.save(
        file,
        save_all=True,
        append_images=others,
        duration=round(FRAME_S * 1e3),
        loop=0,
        optimize=True,
    )
    print(f"{file.name}: {len(frames)} frames, {file.stat().st_size / 1e6:.1f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="where runs are kept; left out: nowhere")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arm = Learner("A robot arm reaches for targets", "robot", Robot, 12, 25.0)
    car = Learner("A racing car, seen by range finders", "racing_lidar", Car, 10, 60.0)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TMRL_LIKE_HOME"] = str(arguments.runs or scratch)
        for learner in (arm, car):
            began = time.perf_counter()
            if not learner.experiment.paths.trainer_model.exists():
                learner.train()
            minutes, returns = learner.episodes(test=True)
            print(
                f"{learner.name}: {minutes[-1]:.1f} minutes of practice in "
                f"{time.perf_counter() - began:.0f} s; return of test episodes {returns[0]:.1f} at "
                f"first, {averaged(returns)[-1]:.1f} at the end",
                flush=True,
            )
        draw_gif([arm, car], Path(__file__).with_name("learning.gif"))


if __name__ == "__main__":
    main()
