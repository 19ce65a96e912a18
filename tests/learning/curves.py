"""Draws the learning curves of the environments' pages: included experiments, in simulated time.

    python tests/learning/curves.py [drone robot doom carla] [--seeds 0 1 2] [--folder FOLDER]

Each runs as `tmrl-like run --in-process`, with an environment whose time advances only while the
loop waits. That equals real time with a trainer that is always fast enough. Needs the extras
`mujoco`, `vizdoom`, `carla` and `plot`.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1]))
from kit.simulated import simulated

from tmrl_like.metrics.curves import averaged, curve_of, new_figure

ROOT = Path(__file__).parents[2]
TASKS = {  # experiment, its overrides, seconds of a step
    "drone": ("drone", "trainer.epochs=15", 0.05),
    "robot": ("robot", "trainer.epochs=20", 0.05),
    "doom": ("vizdoom", "trainer.epochs=2", 4 / 35),
    "carla": (
        "carla",
        "env.client_cls=carla_stand_in.Client env.sensors.camera=null trainer.epochs=4",
        0.1,
    ),
}


def train(name, seed):
    """Train with one seed; return the run's folder."""
    experiment, changes, _ = TASKS[name]
    changes += f" seed={seed} run_name={name}_{seed} trainer.max_minutes=.inf"
    with simulated(experiment, changes).make_in_process() as trainer:
        trainer.run()
    return Path(os.environ["TMRL_LIKE_HOME"], "runs", f"{name}_{seed}")


def draw(folders, step_s, file):
    """Draw test episodes as dots, and their moving mean as a line for each seed."""
    figure = new_figure(7, 3.2)
    axes = figure.subplots()
    for folder in folders:
        _, samples, returns = curve_of(folder)
        (line,) = axes.plot(step_s * samples, averaged(returns), label=folder.name)
        axes.plot(step_s * samples, returns, ".", color=line.get_color(), alpha=0.5)
    axes.set(xlabel="seconds of experience", ylabel="return of an episode")
    axes.legend()
    figure.savefig(file, dpi=110)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "environments" / "figures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as home:
        os.environ["TMRL_LIKE_HOME"] = home
        for name in arguments.tasks:
            folders = [train(name, seed) for seed in arguments.seeds]
            draw(folders, TASKS[name][2], arguments.folder / f"{name}_curve.png")


if __name__ == "__main__":
    main()
