"""The racing game, learnt in real time as a user does it: share of the track and lap times over
minutes.

    python tests/learning/racing.py config/racing_iqn.yaml [--seeds 0 1 2] [--minutes 10]
                                    [--curves iqn.json] [--video lap.mp4] [--picture iqn.png]
                                    [--agent.gamma 0.98 ...]
    python tests/learning/racing.py iqn.json sac.json --picture docs/figures/racing_iqn.png

The whole product: `tmrl-like run`, then `tmrl-like test --video`. What it does not know itself is
overridden in the experiment. The second form trains nothing: it draws curves that were kept. Needs
the extras `box2d` and `plot`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from tmrl_like.envs.racing import demonstration

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Drive:
    """An episode.

    Attributes:
        minutes: of its end, since the first one began; after training: 0.
        share: of the track.
        lap_s: how long the whole lap took; None: it was not driven to its end.
    """

    minutes: float
    share: float
    lap_s: float | None


@dataclass(frozen=True)
class Learnt:
    """What a run reached.

    Attributes:
        seed: of the agent.
        training, testing: episodes while training.
        final: test episodes with the last policy.
        overruns: decisions that came too late while training.
        steps: decisions while training.
    """

    seed: int
    training: list[Drive]
    testing: list[Drive]
    final: list[Drive]
    overruns: int
    steps: int

    @classmethod
    def read(cls, values: dict[str, Any]) -> Learnt:
        """From what `dataclasses.asdict` made of it."""
        drives = {
            name: [Drive(**drive) for drive in values[name]]
            for name in ("training", "testing", "final")
        }
        return cls(**values | drives)

    def summary(self) -> str:
        """A line for people."""
        first = min((drive.minutes for drive in self.training if drive.lap_s), default=None)
        laps = [drive.lap_s for drive in self.final if drive.lap_s]
        shares = ", ".join(f"{drive.share:.2f}" for drive in self.final)
        return (
            f"seed {self.seed}: the first whole lap "
            + ("never" if first is None else f"in minute {first:.1f}")
            + f"; with the last policy {shares} of the track, {len(laps)} laps"
            + (
                f" in {np.median(laps):.1f} s (median; {min(laps):.1f} to {max(laps):.1f})"
                if laps
                else ""
            )
            + f"; {self.steps} decisions, {self.overruns} too late"
        )


def learn(
    experiment: Path,
    minutes: float,
    seed: int,
    home: Path,
    video: Path | None = None,
    test_episodes: int = 5,
    overrides: Sequence[str] = (),
) -> Learnt:
    """Train in real time, then test.

    Args:
        experiment: of the racing game.
        minutes: of real time.
        seed: of the agent.
        home: where the run is kept.
        video: of the first test episode.
        test_episodes: with the last policy.
        overrides: of the experiment, as on the command line.
    """
    shown = command_line("config", experiment, *overrides, home=home)
    config = yaml.safe_load(shown)
    env = config["env"]["init_args"]
    reward = {
        "reward_per_point": 0.01,
        "end_of_track_reward": 100.0,
        "constant_penalty": 0.0,
    } | env["reward"]
    track = reward["reward_per_point"] * (len(demonstration(1)) - 1)

    def drive(return_: float, steps: int, minutes: float = 0.0) -> Drive:
        """Going back takes away what going there gave, and the lap's end gives more."""
        earned = return_ - steps * reward["constant_penalty"]
        is_lap = earned > track + 0.5 * reward["end_of_track_reward"]
        return Drive(
            minutes, float(np.clip(earned / track, 0.0, 1.0)), steps * step_s if is_lap else None
        )

    step_s = env.get("time_step_duration", 0.06)
    command_line(
        "run",
        experiment,
        "--trainer.max_minutes",
        str(minutes),
        "--seed",
        str(seed),
        *overrides,
        home=home,
    )
    words = [
        *overrides,
        *(("--video", str(video)) if video else ()),
        "--episodes",
        str(test_episodes),
    ]
    tested = episodes_of(command_line("test", experiment, *words, home=home))
    lines = (
        (home / "runs" / config["run_name"] / "metrics.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    episodes = [record for record in map(json.loads, lines) if record["kind"] == "episode"]
    began = episodes[0]["time_s"] - episodes[0]["duration_s"]

    def drives(test: bool) -> list[Drive]:
        chosen = [e for e in episodes if e["test"] == test]
        return [drive(e["return"], e["steps"], (e["time_s"] - began) / 60) for e in chosen]

    final = [drive(return_, steps) for return_, steps, _ in tested]
    overruns, steps = (sum(e[name] for e in episodes) for name in ("overruns", "steps"))
    return Learnt(seed, drives(False), drives(True), final, overruns, steps)


def episodes_of(printed: str) -> list[tuple[float, int, bool]]:
    """Return, steps and whether it terminated, of each episode that `tmrl-like test` shows."""
    episodes = re.findall(r"^episode \d+: return (\S+) in (\d+) steps, .*, (\w+)$", printed, re.M)
    return [
        (float(return_), int(steps), ending == "terminated") for return_, steps, ending in episodes
    ]


def command_line(command: str, config: Path, *options: str, home: Path) -> str:
    """Run `tmrl-like`; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tmrl_like", command, str(config), *options],
        env={**os.environ, "TMRL_LIKE_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return done.stdout


def draw(curves: dict[str, list[Learnt]], file: Path) -> None:
    """Training episodes as dots, test episodes of each seed as a line; below, how long whole laps
    took.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5.5), layout="constrained")
    shares, laps = figure.subplots(2, sharex=True)
    for i, (name, seeds) in enumerate(curves.items()):
        for j, learnt in enumerate(seeds):
            for axes, what in ((shares, "share"), (laps, "lap_s")):
                for drives, look in (
                    (learnt.training, {"ls": "", "marker": ".", "alpha": 0.2}),
                    (learnt.testing, {}),
                ):
                    known = [
                        (d.minutes, getattr(d, what))
                        for d in drives
                        if getattr(d, what) is not None
                    ]
                    label = name if drives is learnt.testing and j == 0 else None
                    axes.plot(*np.reshape(known, (-1, 2)).T, color=f"C{i}", label=label, **look)
    shares.set(ylabel="share of the track", ylim=(0, 1.02))
    laps.set(xlabel="minutes of driving", ylabel="lap time in s")
    shares.legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", type=Path, nargs="+", help="an experiment, or curves that were kept"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of training")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--curves", type=Path, help="where the episodes of each seed are kept, as JSON"
    )
    parser.add_argument("--picture", type=Path, help="where to draw the curves, as PNG")
    parser.add_argument(
        "--video", type=Path, help="where a test episode of the last seed goes, as MP4"
    )
    arguments, overrides = parser.parse_known_args()
    curves = {}
    for file in arguments.files:
        if file.suffix == ".json":
            curves[file.stem] = [
                Learnt.read(values) for values in json.loads(file.read_text(encoding="utf-8"))
            ]
            continue
        curves[file.stem] = []
        for seed in arguments.seeds:
            with tempfile.TemporaryDirectory() as home:
                learnt = learn(
                    file, arguments.minutes, seed, Path(home), arguments.video, overrides=overrides
                )
            curves[file.stem].append(learnt)
            print(learnt.summary(), flush=True)
        if arguments.curves:
            kept = [dataclasses.asdict(learnt) for learnt in curves[file.stem]]
            arguments.curves.write_text(json.dumps(kept), encoding="utf-8")
    if arguments.picture:
        draw(curves, arguments.picture)


if __name__ == "__main__":
    main()
