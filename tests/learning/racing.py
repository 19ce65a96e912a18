"""Trains on the racing game in real time, as a user does: share of the track and lap times over
minutes.

    python tests/learning/racing.py config/racing_iqn.yaml … [--seeds 0 1 2] [--minutes 10]
                                    [--picture iqn.png] [--agent.gamma 0.98 ...]

Runs the whole product: `tmrl-like run`, then `tmrl-like test`. Options that are not listed here
override keys of the experiments. Needs the extras `box2d` and `plot`.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

sys.path.append(str(Path(__file__).parents[1]))
from kit.pythons import python

from tmrl_like.envs.racing import demonstration
from tmrl_like.envs.trajectory import RewardOptions
from tmrl_like.metrics.curves import new_figure
from tmrl_like.metrics.reading import read_records


class Drive(NamedTuple):
    """An episode: minutes since training began, share of the track, and lap time in seconds; NaN
    without a whole lap.
    """

    minutes: float
    share: float
    lap_s: float


@dataclass(frozen=True)
class Learnt:
    """Training episodes, the test episodes among them, and test episodes afterwards with the last
    policy and with the best one.
    """

    training: list[Drive]
    testing: list[Drive]
    final: list[Drive]
    best: list[Drive]

    def __str__(self):
        first, first_tested = (
            min((drive.minutes for drive in drives if drive.lap_s > 0), default=np.inf)
            for drives in (self.training, self.testing)
        )
        last, best = (
            ", ".join(f"{drive.share:.2f} ({drive.lap_s:.1f} s)" for drive in drives)
            for drives in (self.final, self.best)
        )
        return (
            f"the first whole lap in minute {first:.1f}, of a test episode {first_tested:.1f}; "
            f"shares of the track and times of whole laps with the last policy: {last}; "
            f"with the best one: {best}"
        )


def learn(experiment, minutes, seed, home, overrides=()):
    """Train an experiment of the racing game in real time, and test its last and its best policy.
    The run's folder is in `home`.
    """
    config = yaml.safe_load(command_line("config", experiment, *overrides, home=home))
    env = config["env"]["init_args"]
    reward = vars(RewardOptions()) | env["reward"]
    track = reward["reward_per_point"] * (len(demonstration(1)) - 1)

    def drive(return_, steps, minutes=0.0):
        """Compute the share of the track from the return: driving back loses the reward of driving
        there, and the end of the lap adds a bonus. An episode that is neither a lap nor as long as
        it may be has failed.
        """
        earned = return_ - steps * reward["constant_penalty"]
        is_lap = earned > track + 0.5 * reward["end_of_track_reward"]
        if not is_lap and steps < env.get("ep_max_length", 1000):
            earned -= reward["failure_reward"]
        lap_s = steps * env.get("time_step_duration", 0.06) if is_lap else np.nan
        return Drive(minutes, float(np.clip(earned / track, 0.0, 1.0)), lap_s)

    words = ("--trainer.max_minutes", str(minutes), "--seed", str(seed), *overrides)
    command_line("run", experiment, *words, home=home)
    name = config["run_name"]
    tested = [
        command_line("test", f"{name}@{which}", "--episodes", "5", home=home)
        for which in ("newest", "best")
    ]
    records = read_records(home / "runs" / name / "metrics.jsonl")
    episodes = [record for record in records if record["kind"] == "episode"]
    began_s = episodes[0]["time_s"] - episodes[0]["duration_s"]

    def drives(test):
        return [
            drive(e["return"], e["steps"], (e["time_s"] - began_s) / 60)
            for e in episodes
            if e["test"] == test
        ]

    final, best = (
        [drive(return_, steps) for return_, steps, _ in episodes_of(printed)] for printed in tested
    )
    return Learnt(drives(False), drives(True), final, best)


def episodes_of(printed):
    """Parse the output of `tmrl-like test`: each episode's return, steps, and whether it
    terminated.
    """
    episodes = re.findall(r"^episode \d+: return (\S+) in (\d+) steps, .*, (\w+)$", printed, re.M)
    return [
        (float(return_), int(steps), ending == "terminated") for return_, steps, ending in episodes
    ]


def command_line(command, config, *options, home):
    """Run a command of `tmrl-like`; return its stdout."""
    words = "-m", "tmrl_like", command, config, *options
    return python(*words, within_s=None, TMRL_LIKE_HOME=str(home))[0]


def draw(curves, file):
    """Draw training episodes as dots, and the test episodes of each seed as a line; below them, the
    times of whole laps.
    """
    shares, laps = (figure := new_figure(7, 5.5)).subplots(2, sharex=True)
    for number, (name, seeds) in enumerate(curves.items()):
        colour = {"color": f"C{number}"}
        for learnt in seeds:
            minutes, *training = zip(*learnt.training, strict=True)
            test_minutes, *testing = zip(*learnt.testing, strict=True)
            label = name if learnt is seeds[0] else None
            for axes, dots, line in zip((shares, laps), training, testing, strict=True):
                axes.plot(minutes, dots, ".", alpha=0.2, **colour)
                axes.plot(test_minutes, line, label=label, **colour)
    shares.set(ylabel="share of the track", ylim=(0, 1.02))
    laps.set(xlabel="minutes of driving", ylabel="lap time in s")
    shares.legend(loc="lower right")
    figure.savefig(file, dpi=110)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiments", type=Path, nargs="+")
    parser.add_argument("--minutes", type=float, default=10.0, help="of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--picture", type=Path, help="where to draw the curves, as PNG")
    arguments, overrides = parser.parse_known_args()
    curves = {}
    for experiment in arguments.experiments:
        curves[experiment.stem] = []
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as home:
                learnt = learn(experiment, arguments.minutes, seed, Path(home), overrides)
            curves[experiment.stem].append(learnt)
            print(f"{experiment.stem}, seed {seed}: {learnt}", flush=True)
    if arguments.picture:
        draw(curves, arguments.picture)


if __name__ == "__main__":
    main()
