"""The racing game, learnt in real time as a user does it: share of the track over time.

    python tests/learning/racing.py [--seen lidar|image] [--minutes 10] [--seed 0]
                                    [--picture docs/figures/racing.png] [--video lap.mp4]

The whole product: `tmrl-like run`, then `tmrl-like test --video`. Needs the extras `box2d` and `plot`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from tmrl_like.envs.racing import demonstration

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Learnt:
    """What a run reached.

    Attributes:
        training, testing: (minutes since the first episode began, share of the track) of each episode.
        final: shares of the track in test episodes with the last policy.
        overruns: decisions that came too late while training.
        steps: decisions while training.
    """

    training: list[tuple[float, float]]
    testing: list[tuple[float, float]]
    final: list[float]
    overruns: int
    steps: int


def learn(seen: str, minutes: float, seed: int, home: Path, video: Path, test_episodes: int = 5) -> Learnt:
    """Train in real time, then test.

    Args:
        seen: "lidar" or "image", for config/racing_lidar.yaml or config/racing_image.yaml.
        minutes: of real time.
        seed: of the agent.
        home: where the run is kept.
        video: of the first test episode.
        test_episodes: with the last policy.
    """
    config = ROOT / "config" / f"racing_{seen}.yaml"
    reward = yaml.safe_load(config.read_text(encoding="utf-8"))["env"]["init_args"]["reward"]
    whole_lap = reward["reward_per_point"] * (len(demonstration(1)) - 1)
    command_line("run", config, "--minutes", str(minutes), "--seed", str(seed), "--server.port", "7789", home=home)
    words = ("--video", str(video), "--episodes", str(test_episodes))
    returns = re.findall(r"^episode \d+: return (\S+)", command_line("test", config, *words, home=home), re.M)
    lines = (home / "runs" / config.stem / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    episodes = [record for record in map(json.loads, lines) if record["kind"] == "episode"]
    began = episodes[0]["time_s"] - episodes[0]["duration_s"]

    def share(return_: float) -> float:
        """Of the track: going back takes away what going there gave, and the lap's end gives more."""
        return float(np.clip(return_ / whole_lap, 0.0, 1.0))

    def points(test: bool) -> list[tuple[float, float]]:
        return [((e["time_s"] - began) / 60, share(e["return"])) for e in episodes if e["test"] == test]

    return Learnt(
        points(False),
        points(True),
        [share(float(text)) for text in returns],
        sum(e["overruns"] for e in episodes),
        sum(e["steps"] for e in episodes),
    )


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


def draw(learnt: Learnt, file: Path) -> None:
    """Training episodes as dots, test episodes as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*learnt.training, strict=True), ".", color="lightsteelblue", label="training episodes")
    axes.plot(*zip(*learnt.testing, strict=True), color="tab:blue", label="test episodes")
    axes.set(xlabel="minutes of driving", ylabel="share of the track", ylim=(0, 1.02))
    axes.legend(loc="lower right")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seen", choices=("lidar", "image"), default="lidar")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", type=Path, help="where to draw the curve, as PNG")
    parser.add_argument("--video", type=Path, help="where a test episode goes, as MP4")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        video = arguments.video or Path(home) / "lap.mp4"
        learnt = learn(arguments.seen, arguments.minutes, arguments.seed, Path(home), video)
    if arguments.picture:
        draw(learnt, arguments.picture)
    print(json.dumps(learnt.__dict__))


if __name__ == "__main__":
    main()
