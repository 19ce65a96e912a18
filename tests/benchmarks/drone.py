"""The whole product on the drone: `tmrl-like run config/drone.yaml --proof`, in real time, several seeds.

    python tests/benchmarks/drone.py [--seeds 0 1 2] [--minutes 10]

Takes the length of the runs: some seven minutes a seed. Collecting time counts from the first round; the
test return at a time is the mean of the test episodes of the minute before it. The floor (what is
reachable) is a hand-written proportional controller on the same drone, in the same run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _common import Options, finish, median

CONFIG = Path(__file__).parents[2] / "config" / "drone.yaml"
GAIN = 4.0  # 1/s
AGES = ("sample_age_p50_s", "sample_age_p99_s", "policy_age_p50_s", "policy_age_p99_s")
FINAL = ("return", "terminated", "steps")


def controller(episodes: int) -> dict[str, float]:
    """A proportional controller flies to the target: mean return, share that reached it, steps."""
    from tmrl_like.envs.drone import DroneEnv

    env = DroneEnv()
    returns, reached, steps = [], 0, 0
    for _ in range(episodes):
        obs, _ = env.reset()
        ended, ret = False, 0.0
        while not ended:
            x, y, target_x, target_y = (float(o[0]) for o in obs[:4])
            action = np.clip(np.array([target_x - x, target_y - y]) * GAIN, -2, 2).astype(np.float32)
            obs, rew, terminated, truncated, _ = env.step(action)
            ret, steps, ended = ret + float(rew), steps + 1, terminated or truncated
        returns.append(ret)
        reached += terminated
    env.close()
    return {"return": float(np.mean(returns)), "reached": reached / episodes, "steps": steps / episodes}


def run(seed: int, minutes: float | None, has_proof: bool) -> dict[str, Any]:
    """One run of the experiment as a user starts it; returns its records and its proof."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "tmrl_like", "run", str(CONFIG), "--seed", str(seed), "--server.port", "7789"]
        command += ["--proof"] * has_proof + (["--trainer.max_minutes", str(minutes)] if minutes else [])
        environment = {**os.environ, "TMRL_LIKE_HOME": home}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        folder = Path(home) / "runs" / "drone"
        if has_proof and not (folder / "proof.json").exists():
            raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        return {
            "records": [json.loads(line) for line in lines],
            "trained": json.loads((folder / "proof.json").read_text())["trained"] if has_proof else [],
            "exit_code": done.returncode,
        }


def seconds_until_better_than(records: list[dict[str, Any]], limit: float) -> float:
    """Collecting time after which the mean of the last three test episodes is above `limit` for the first time."""
    tests = [r for r in records if r["kind"] == "episode" and r["test"]]
    for i in range(2, len(tests)):
        if np.mean([t["return"] for t in tests[i - 2 : i + 1]]) > limit:
            return float(tests[i]["time_s"])
    return float("inf")


def mean_test_return_before(records: list[dict[str, Any]], time_s: float) -> float:
    tests = [
        r["return"] for r in records if r["kind"] == "episode" and r["test"] and time_s - 60 < r["time_s"] <= time_s
    ]
    return float(np.mean(tests)) if tests else float("nan")


def summary(result: dict[str, Any]) -> dict[str, float]:
    records = result["records"]
    rounds = [r for r in records if r["kind"] == "round"][1:]
    newest = rounds[-1] if rounds else {}
    trained = result["trained"]
    tests = [r for r in records if r["kind"] == "episode"]
    return {
        "seconds_until_test_return_above_minus_7": seconds_until_better_than(records, -7.0),
        "test_return_in_third_minute": mean_test_return_before(records, 180),
        **{f"final_{name}_mean": float(np.mean([e[name] for e in trained])) for name in FINAL if trained},
        "collecting_s": float(max(r["time_s"] for r in tests)),
        **{name: median([r[name] for r in rounds if name in r] or [float("nan")]) for name in AGES},
        "overruns": float(max((r.get("overruns_total", 0) for r in rounds), default=0)),
        "env_steps": float(newest.get("env_steps_total", 0)),
        "training_steps": float(newest.get("training_steps_total", 0)),
        "exit_code": float(result["exit_code"]),
    }


def main() -> None:
    parser = Options(__doc__, seeds=[0], minutes=0.2, episodes=2)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, default=20, help="of the controller")
    parser.add_argument("--minutes", type=float, default=None, help="end training after so long; default: the file's")
    arguments = parser.parse()
    result: dict[str, Any] = {}
    for name, value in controller(arguments.episodes).items():
        result[f"drone_floor_controller_gain_4_{name}"] = value
    for seed in arguments.seeds:
        for name, value in summary(run(seed, arguments.minutes, not arguments.quick)).items():
            result[f"drone_seed_{seed}_{name}"] = value
        print(json.dumps({k: v for k, v in result.items() if f"seed_{seed}" in k}), flush=True)
    result |= {"goal_return_minute_3": -7.0, "goal_final_return": -3.5, "goal_final_reached_share": 0.95}
    result |= {"goal_sample_age_s": 0.3, "goal_policy_age_s": 0.5}
    finish(result)


if __name__ == "__main__":
    main()
