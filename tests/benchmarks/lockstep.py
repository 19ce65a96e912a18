"""Lockstep with training: steps per second against bare threads, and learning that depends on nobody's speed.

    python tests/benchmarks/lockstep.py [--envs 8] [--step-ms 50] [--steps 40] [--repeats 3]
    python tests/benchmarks/lockstep.py --curves [--seeds 5] [--curve-steps 1600]

Server and trainer are threads of this process, the worker's link is a process. In turns, as many bare threads step the
same environments and do nothing else. `ratio_error_tasks` is the largest number of tasks that were not done: of each
environment one may wait while its next step is under way, and that of this step joins it. With `--curves` each seed
learns with neither, with the learner and with the environment slowed down fourfold.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from _common import Options, finish, median, repeat

from tmrl_like import GenericGymEnv, RolloutWorker, Server, Trainer, TrainingOffline, partial
from tmrl_like.agents import CategoricalActor, DiscreteSACAgent
from tmrl_like.networking import WorkerOptions
from tmrl_like.replay import ReplayMemory

_ACTOR = partial(CategoricalActor, hidden_sizes=(64, 64))


class SlowEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Stands still, and takes its time."""

    def __init__(self, step_s: float) -> None:
        super().__init__(GenericGymEnv(id="CartPole-v1"))
        self._step_s = step_s

    def step(self, action: Any) -> Any:
        time.sleep(self._step_s)
        return self.env.step(action)


class SlowAgent(DiscreteSACAgent):
    """Takes its time, too."""

    step_s = 0.0

    def train(self, batch: Any) -> dict[str, Any]:
        time.sleep(self.step_s)
        return super().train(batch)


class WatchedTraining(TrainingOffline):
    """Notes how many tasks wait."""

    most = 0.0

    def _release_workers(self, around: Any) -> None:
        pacer = self.pacer
        self.most = max(self.most, pacer.tasked_steps - (self.total_updates - pacer.untasked_training))
        super()._release_workers(around)


class Episodes:
    """A sink that keeps (environment steps so far, return) of each episode."""

    def __init__(self) -> None:
        self.returns: list[tuple[int, float]] = []

    def write(self, record: dict[str, Any]) -> None:
        if record["kind"] == "episode":
            self.returns.append((record["env_steps_total"], record["return"]))

    def close(self) -> None:
        pass


@contextlib.contextmanager
def in_lockstep(
    envs: int, step_s: float, train_s: float = 0.0, seed: int | None = None, sinks: Sequence[Any] = ()
) -> Iterator[tuple[RolloutWorker, WatchedTraining]]:
    """A worker, and the training that it is in lockstep with."""
    agent = type("Agent", (SlowAgent,), {"step_s": train_s})
    memory = partial(ReplayMemory, batch_size=64)
    fields = {"start_training": 100, "update_model_interval": 4, "epochs": float("inf"), "device": "cpu"}
    training = partial(
        WatchedTraining,
        env_cls=partial(SlowEnv, 0.0),
        memory_cls=memory,
        training_agent_cls=partial(agent, actor_cls=_ACTOR),
        **fields,
    )
    with tempfile.TemporaryDirectory() as folder, Server(0, host="127.0.0.1") as server:
        where = {"server_ip": "127.0.0.1", "server_port": server.address[1], "model_path": None}
        kept = {"checkpoint_path": None, "metrics_path": f"{folder}/metrics.jsonl", "sinks": sinks}
        options = WorkerOptions(envs=envs, max_samples_per_episode=100)
        env = partial(SlowEnv, step_s)
        with (
            Trainer(training, **where, **kept) as trainer,
            RolloutWorker(env, _ACTOR, options=options, seed=seed, name="worker", **where) as worker,
        ):
            thread = threading.Thread(target=trainer.run, daemon=True)
            thread.start()
            yield worker, trainer.training
            trainer.stop()
            thread.join()


def lockstep_rate(worker: RolloutWorker, seconds: float) -> float:
    """Environment steps per second, once all environments step."""
    running = threading.Thread(target=worker.run_synchronous, kwargs={"end_episodes": False})
    running.start()
    time.sleep(1.0)
    before, started = worker._collected_steps, time.perf_counter()
    time.sleep(seconds)
    rate = (worker._collected_steps - before) / (time.perf_counter() - started)
    worker.stop()
    running.join()
    return rate


def bare_rate(envs: int, step_s: float, steps: int) -> float:
    """The same of threads that do nothing but step."""
    made = [SlowEnv(step_s) for _ in range(envs)]

    def drive(env: SlowEnv) -> None:
        env.reset()
        for _ in range(steps):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()

    threads = [threading.Thread(target=drive, args=(env,)) for env in made]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return envs * steps / (time.perf_counter() - started)


def curve(seed: int, steps: int, step_s: float, train_s: float) -> list[float]:
    """Mean return of the training episodes that ended in each quarter of the steps; they are cut after 100 steps."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    episodes = Episodes()
    with in_lockstep(4, step_s, train_s, seed, [episodes]) as (worker, training):
        training.memory.seed(seed)
        worker.run_synchronous(nb_steps=steps, end_episodes=False)
        quarters = [[r for at, r in episodes.returns if i * steps / 4 <= at < (i + 1) * steps / 4] for i in range(4)]
        return [float(np.mean(returns)) for returns in quarters]


def main() -> None:
    """Measure, print."""
    parser = Options(__doc__, envs=4, step_ms=20.0, steps=40, repeats=1, seeds=1, curve_steps=200)
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--step-ms", type=float, default=50.0)
    parser.add_argument("--steps", type=int, default=40, help="of each environment and turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--curve-steps", type=int, default=1600)
    arguments = parser.parse()
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    if arguments.curves:
        paces = {"neither": (0.002, 0.002), "learner_x4": (0.002, 0.008), "environment_x4": (0.008, 0.002)}
        result: dict[str, Any] = {}
        for name, pace in paces.items():
            curves = [curve(seed, arguments.curve_steps, *pace) for seed in range(arguments.seeds)]
            result[name] = np.nanmean(curves, axis=0).round(1).tolist()
            result[f"{name}_std"] = np.nanstd(curves, axis=0).round(1).tolist()
        finish(result)
        return
    step_s = arguments.step_ms / 1e3
    with in_lockstep(arguments.envs, step_s) as (worker, training):
        lockstep_rate(worker, 3.0)
        ours, bare = repeat(
            arguments.repeats,
            lambda: lockstep_rate(worker, arguments.steps * step_s),
            lambda: bare_rate(arguments.envs, step_s, arguments.steps),
        )
        worker.run_synchronous(nb_steps=arguments.envs * 20, end_episodes=False)  # to the end, unlike those above
        shares = [one / other for one, other in zip(ours, bare, strict=True)]
        finish(
            {
                "lockstep_steps_per_s": median(ours),
                "bare_threads_steps_per_s": median(bare),
                "share": median(shares),
                "share_min_max": [round(min(shares), 3), round(max(shares), 3)],
                "ratio_error_tasks": training.most,
                "tasks_left": training.pacer.tasked_steps - (training.total_updates - training.pacer.untasked_training),
            }
        )


if __name__ == "__main__":
    main()
