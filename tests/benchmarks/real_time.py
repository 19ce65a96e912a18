"""The whole product in real time, with several seeds: `tmrl-like run EXPERIMENT --proof`, started
as by a user.

    python tests/benchmarks/real_time.py [--experiments drone robot] [--seeds 0 1 2 3 4]
                                         [--minutes 2]

Training takes `--minutes`, test episodes included; then the proof tests the last policy in twenty
episodes. An episode succeeds if it ends at its target. Seconds count from the start of training.
The drone's limit is a hand-written proportional controller on the same drone, in the same run.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from _harness import CONFIG, benchmark
from kit.ports import free_port

GAIN = 4.0  # 1/s
GOOD = {"drone": -7.0, "robot": -10.0}  # return of a good test episode
AGES = ("sample_age_p50_s", "sample_age_p99_s", "policy_age_p50_s", "policy_age_p99_s")


def controllers_return(episodes):
    """Return the mean return of a proportional controller that flies the drone to its target."""
    from tmrl_like.envs.drone import DroneEnv

    env = DroneEnv()
    total = 0.0
    for _ in range(episodes):
        obs, _ = env.reset()
        ended = False
        while not ended:
            x, y, target_x, target_y = (float(o[0]) for o in obs[:4])
            action = np.clip(np.array([target_x - x, target_y - y]) * GAIN, -2, 2).astype(
                np.float32
            )
            obs, rew, terminated, truncated, _ = env.step(action)
            total += float(rew)
            ended = terminated or truncated
    env.close()
    return total / episodes


def run(experiment, seed, minutes, has_proof):
    """Make a run; return its records, and the episodes of its proof."""
    with tempfile.TemporaryDirectory() as home:
        command = [
            sys.executable,
            "-m",
            "tmrl_like",
            "run",
            str(CONFIG.with_name(f"{experiment}.yaml")),
        ]
        command += [
            "--seed",
            str(seed),
            "--server.port",
            str(free_port()),
            "--trainer.max_minutes",
            str(minutes),
        ]
        command += ["--proof"] * has_proof
        environment = {**os.environ, "TMRL_LIKE_HOME": home}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        folder = Path(home) / "runs" / experiment
        proof = folder / "proof.json"
        if has_proof and not proof.exists():
            sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
        records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return records, json.loads(proof.read_text())["trained"] if has_proof else []


def first_good_s(tests, good):
    return next((test["time_s"] for test in tests if test["return"] > good), float("inf"))


def all_succeed_from_s(tests):
    """Return the time of the first test episode from which on all succeeded, else infinity."""
    from_s = float("inf")
    for test in reversed(tests):
        if not test["terminated"]:
            return from_s
        from_s = test["time_s"]
    return from_s


def measure(options):
    for experiment in options.experiments:
        found = {}

        def note(what, value, of=found):
            of.setdefault(what, []).append(float(value))

        for seed in options.seeds:
            records, proof = run(experiment, seed, options.minutes, not options.quick)
            tests = [record for record in records if record["kind"] == "episode" and record["test"]]
            rounds = [record for record in records if record["kind"] == "round"][1:]
            note(
                f"first test episode above {GOOD[experiment]:g}, s",
                first_good_s(tests, GOOD[experiment]),
            )
            note("every later test episode succeeds from, s", all_succeed_from_s(tests))
            if proof:
                note("return of the last policy", np.mean([episode["return"] for episode in proof]))
                note(
                    "share of its episodes that succeed",
                    np.mean([episode["terminated"] for episode in proof]),
                )
            for age in AGES:
                note(
                    age, np.median([record[age] for record in rounds if age in record] or [np.nan])
                )
            newest = rounds[-1] if rounds else {}
            note("overruns", newest.get("overruns_total", 0))
            env_steps = newest.get("env_steps_total", 0)
            note("environment steps", env_steps)
            note(
                "training steps per environment step",
                newest.get("training_steps_total", 0) / max(1, env_steps),
            )
        for what, values in found.items():
            is_limited = experiment == "drone" and what.startswith("return")
            limit = {"limit": controllers_return(20)} if is_limited else {}
            yield {
                "what": f"{experiment}: {what}",
                "ours": values,
                "each seed": ", ".join(f"{v:.4g}" for v in values),
                **limit,
            }


if __name__ == "__main__":
    quick = {"experiments": ["drone"], "seeds": [0], "minutes": 0.2}
    benchmark(
        __doc__, measure, experiments=list(GOOD), seeds=[0, 1, 2, 3, 4], minutes=2.0, quick=quick
    )
