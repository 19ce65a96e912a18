"""Trainings in simulated time, in one thread: what ships, and the same with a fault in it.

    python tests/learning/faults.py [NAME …]

Prints what the learning doctor says of each.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like import GenericGymEnv, TrainingOffline, partial, run_in_process
from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.envs.drone import MirroredFlights
from tmrl_like.envs.drone import TargetInView as WayOfTheDrone
from tmrl_like.envs.racing import MirroredLaps
from tmrl_like.envs.racing import racing_env as racing
from tmrl_like.envs.racing.racing_game import Simulation
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.replay import ReplayMemory
from tmrl_like.replay.compressor import compressor_of
from tmrl_like.trainer.diagnosis import NOT_LEARNING, SIGNS

sys.path.append(str(Path(__file__).parents[1]))
from simulated_drone import SimulatedDroneEnv
from test_the_robot_is_learnt import ClocklessRobotEnv

Record = dict[str, Any]
SAMPLES = 1200  # 60 s at 20 decisions a second
FAST = {"lr_actor": 1e-3, "lr_critic": 1e-3}
SMALL = {"hidden_sizes": (64, 64)}


class ClocklessRacingGame:
    """The racing game, which moves on when it is looked at: three of its frames a decision."""

    def __init__(self, track: int) -> None:
        self._simulation, self._controls = Simulation(track), (0.0, 0.0, 0.0)

    def drive(self, *controls: float) -> None:
        self._controls = controls

    def look(self) -> Any:
        return self._simulation.state

    def advance(self) -> None:
        for _ in range(3):
            self._simulation.tick(*self._controls)

    def restart(self) -> None:
        self._simulation.restart()

    def close(self) -> None: ...


class ClocklessRacingEnv(gymnasium.Env[Any, Any]):
    """`RacingEnv` as rtgym runs it, at once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(racing, "RacingGame", ClocklessRacingGame)
        reward = {
            "forward_limit": 15,
            "backward_limit": 5,
            "max_distance": 12,
            "failure_countdown": 16,
        }
        reward |= {"min_steps": 50, "reward_per_point": 0.1, "end_of_track_reward": 10}
        self._interface = racing.RacingInterface(
            "lidar", history=1, reward=racing.RewardOptions(**reward)
        )
        self.action_space = self._interface.get_action_space()
        inner = self._interface.get_observation_space().spaces
        self.observation_space = spaces.Tuple((*inner, self.action_space))
        self.default_action = self._interface.get_default_action()

    def reset(self, **options: Any) -> Any:
        self._steps = 0
        obs, info = self._interface.reset()
        self._run_time_step(self.default_action)
        return (*obs, self.default_action), info

    def step(self, action: Any) -> Any:
        self._steps += 1
        obs, rew, terminated, info = self._result
        truncated = not terminated and self._steps >= 1000
        if not (terminated or truncated):
            self._run_time_step(action)
        return (*obs, np.asarray(action, np.float32)), rew, terminated, truncated, info

    def _run_time_step(self, action: Any) -> None:
        self._interface.send_control(action)
        self._interface._game.advance()
        self._result = self._interface.get_obs_rew_terminated_info()


class Faulty:
    """An environment with something wrong with it: `step` changes what it gets and what it
    returns.
    """

    def __init__(self, env: Any, **changes: Any) -> None:
        """`act`, `observe`, `reward`: functions; `limit`: steps after which an episode is cut, or
        terminated if `limit_terminates`; `observation_space`: another one.
        """
        self._env, self._changes = env, changes
        self.observation_space = changes.get("observation_space", env.observation_space)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **options: Any) -> Any:
        self._num_steps = 0
        obs, info = self._env.reset(**options)
        return self._observe(obs), info

    def step(self, action: Any) -> Any:
        act = self._changes.get("act", lambda action: action)
        obs, rew, terminated, truncated, info = self._env.step(act(action))
        self._num_steps += 1
        rew = np.float32(self._changes.get("reward", lambda rew, terminated: rew)(rew, terminated))
        if self._num_steps >= self._changes.get("limit", np.inf):
            truncated = not (terminated := terminated or "limit_terminates" in self._changes)
        return self._observe(obs), rew, terminated, truncated, info

    def _observe(self, obs: Any) -> Any:
        return self._changes.get("observe", lambda obs: obs)(obs)


class Blind(SquashedGaussianActor):
    """Does not look where it goes."""

    def forward(self, obs: Any) -> Any:
        mean, log_std = self.outputs(0.0 * self.encoder(obs)).chunk(2, dim=-1)
        return mean, log_std.clamp(self.log_std_min, self.log_std_max)


@dataclass(frozen=True)
class Task:
    """A training as it ships, but for its clock.

    Attributes:
        env: makes the environment from a seed.
        agent, memory, actor, schedule: arguments.
    """

    env: Callable[[int, pytest.MonkeyPatch], Any]
    agent: Mapping[str, Any]
    memory: Mapping[str, Any]
    view: Any = None
    augment: Callable[[int], Any] | None = None
    actor: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    test_interval: int = 5


_SECONDS = {"gamma": 0.95, "polyak": 0.98, **FAST, "lr_entropy": 2e-3, "entropy_coef": 0.1}
TASKS = {
    "drone": Task(
        lambda seed, patch: SimulatedDroneEnv(seed=seed),
        _SECONDS,
        {"act_buf_len": 4, "batch_size": 128},
        WayOfTheDrone(),
        MirroredFlights,
        schedule={"start_training": 60},
        test_interval=1,
    ),
    "robot": Task(
        ClocklessRobotEnv,
        _SECONDS | {"gamma": 0.9},
        {"act_buf_len": 2, "batch_size": 128},
        robot.TargetUpClose(),
        robot.OtherTargets,
        actor={"noise_beta": 1.5, "noise_steps": 60},
        schedule={"start_training": 100},
    ),
    "pendulum": Task(
        lambda seed, patch: GenericGymEnv("Pendulum-v1"),
        {"gamma": 0.98, **FAST, "lr_entropy": 1e-3},
        {},
        actor={"hidden_sizes": (128, 128)},
        schedule={"start_training": 1000, "max_training_steps_per_env_step": 1},
    ),
    "racing": Task(
        lambda seed, patch: ClocklessRacingEnv(patch),
        {"gamma": 0.98, "polyak": 0.99, **FAST, "lr_entropy": 1e-3, "entropy_coef": 0.1},
        {"act_buf_len": 1, "batch_size": 128, "n_steps": 5},
        None,
        MirroredLaps,
        schedule={"start_training": 300, "max_training_steps_per_env_step": 5},
    ),
}


@dataclass(frozen=True)
class Case:
    """A training: with a fault, or none.

    Attributes:
        task: of `TASKS`.
        named: signs, one of which must be named; empty: nothing is wrong.
        env: arguments of `Faulty`.
        actor_cls: another actor.
        samples: how long it goes on.
    """

    task: str
    named: tuple[str, ...] = ()
    env: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    actor_cls: Any = SquashedGaussianActor
    without: tuple[str, ...] = ()  # "view", "augment"
    samples: int = SAMPLES
    seed: int = 0


def _boxes(bound: float, sizes: tuple[int, ...], *others: Any) -> spaces.Tuple[Any]:
    return spaces.Tuple((*(spaces.Box(-bound, bound, (size,)) for size in sizes), *others))


_DRONE_ACTION, _ROBOT_ACTION = (
    spaces.Box(-2.0, 2.0, (2,)),
    spaces.Box(-robot.MAX_SPEED, robot.MAX_SPEED, (2,)),
)
FAULTS = {
    "reward is always 0": Case("drone", ("reward",), {"reward": lambda rew, terminated: 0.0}),
    "reward is the same in each step": Case(
        "robot", ("reward",), {"reward": lambda rew, terminated: -1.0}, without=("augment",)
    ),
    "rewards of a millionth": Case(
        "drone",
        ("reward too small",),
        {"reward": lambda rew, terminated: 1e-6 * rew},
        without=("augment",),
    ),
    "rewards of ten thousand": Case(
        "robot",
        ("reward too large",),
        {"reward": lambda rew, terminated: 1e4 * rew},
        without=("augment",),
    ),
    "sensor is dead": Case(
        "drone", ("still",), {"observe": lambda obs: (*(0 * o for o in obs[:4]), *obs[4:])}
    ),
    "millimetres, bounds in metres": Case(
        "robot",
        ("observation too large",),
        {"observe": lambda obs: (*(1000 * o for o in obs[:4]), *obs[4:])},
        without=("view", "augment"),
    ),
    "bounds far too wide": Case(
        "drone",
        ("observation too small",),
        {"observation_space": _boxes(1e3, (1, 1, 1, 1), *[_boxes(1e3, (2,))[0]] * 4)},
    ),
    "actor learns too fast": Case("drone", ("ignores",), agent={"lr_actor": 0.3}),
    "entropy coefficient far too large": Case(
        "drone",
        ("random", "reward too small"),
        agent={"entropy_coef": 20.0, "learn_entropy_coef": False},
        samples=1800,
    ),
    "actions do nothing": Case(
        "robot", ("flat",), {"act": lambda action: 0.0 * action}, samples=3600
    ),
    "critics learn too fast": Case("robot", ("values", "critics"), agent={"lr_critic": 0.3}),
    "critics do not learn": Case("robot", ("critics stay",), agent={"lr_critic": 0.0}),
    "episodes are cut after three steps": Case("robot", ("short episodes",), {"limit": 3}),
    "time limit is said to terminate": Case(
        "robot", ("time limit",), {"limit": 12, "limit_terminates": True}, without=("augment",)
    ),
    "memory of 40 samples": Case("robot", ("memory", "held out"), memory={"memory_size": 40}),
    "one training step in a hundred": Case(
        "drone",
        ("few training steps",),
        schedule={"max_training_steps_per_env_step": 0.01, "steps": 1},
        samples=2400,
    ),
    "no policy is published": Case(
        "robot",
        ("old policy",),
        schedule={"update_model_interval": 10**6, "rounds": 10**6},
        samples=1800,
    ),
    "actor ignores its observation": Case("robot", ("ignores",), actor_cls=Blind),
    "actor does not learn": Case("robot", ("policy stays",), agent={"lr_actor": 0.0}),
    "no value beyond the next step": Case("drone", ("gamma",), agent={"gamma": 0.0}),
}
HEALTHY = {
    **{
        f"drone {seed}": Case("drone", seed=seed, samples=samples)
        for seed, samples in ((1, 2400), (2, 2400), (3, 500))
    },
    **{
        f"robot {seed}": Case("robot", seed=seed, samples=samples)
        for seed, samples in ((1, 1200), (2, 800), (3, 500))
    },
    **{
        f"pendulum {seed}": Case("pendulum", seed=seed, samples=samples)
        for seed, samples in ((1, 4000), (2, 2000))
    },
    **{
        f"racing {seed}": Case("racing", seed=seed, samples=samples)
        for seed, samples in ((1, 1800), (2, 900))
    },
}


def train(case: Case) -> list[Record]:
    """Train; the records of rounds and episodes."""
    task, made, records = TASKS[case.task], [], []
    torch.set_num_threads(1)
    view = None if "view" in case.without else task.view
    augment = None if "augment" in case.without or task.augment is None else task.augment(case.seed)
    memory = {"obs_preprocessor": view, "sample_preprocessor": augment, "memory_size": 50_000}
    memory_cls = partial(ReplayMemory, **memory | dict(task.memory) | dict(case.memory))
    actor_cls = partial(case.actor_cls, **SMALL | dict(task.actor))
    critic_cls = partial(EnsembleCritic, layer_norm=case.task not in ("drone", "robot"))
    agent_cls = partial(
        SACAgent, actor_cls=actor_cls, critic_cls=critic_cls, **task.agent | dict(case.agent)
    )
    schedule = {"epochs": np.inf, "rounds": 10, "steps": 200, "max_training_steps_per_env_step": 3}
    schedule |= (
        {"update_model_interval": 20, "update_buffer_interval": 5}
        | dict(task.schedule)
        | dict(case.schedule)
    )

    class EndsInTime:
        """A sink that keeps the records, and ends the training after so many samples."""

        def write(self, record: Record) -> None:
            records.append(dict(record))
            if record["kind"] == "round" and record["env_steps_total"] >= case.samples:
                made[0].max_minutes = 0.0

        def close(self) -> None: ...

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        env = task.env(case.seed, patch)
        env = Faulty(env, **case.env) if case.env else env

        def training() -> TrainingOffline:
            spaces = env.observation_space, env.action_space
            made.append(TrainingOffline(spaces, memory_cls, agent_cls, **schedule))
            return made[0]

        run_in_process(
            training,
            lambda: env,
            actor_cls,
            compressor_of(memory_cls),
            seed=case.seed,
            test_episode_interval=task.test_interval,
            worker={"obs_preprocessor": view},
            trainer={
                **dict.fromkeys(("model_path", "checkpoint_path", "policies_path")),
                "metrics_path": Path(folder) / "metrics.jsonl",
                "sinks": [EndsInTime()],
            },
        )
    return records


def lines_of(records: list[Record]) -> list[str]:
    """What the doctor said, round by round."""
    return [record["learning"] for record in records if record["kind"] == "round"]


def sign_in(line: str) -> str:
    """The name of the sign that a line names, or "flat" for returns that do not rise; empty:
    none.
    """
    said = line.removeprefix(NOT_LEARNING)
    if said.startswith("the return does not rise"):
        return "flat"
    return next(
        (name for name, (_, text) in SIGNS.items() if said.startswith(text.partition("{")[0])), ""
    )


def verdict(case: Case, lines: list[str]) -> bool:
    """Whether the fault was named at the end; of a healthy training, whether nothing was ever said
    against it.
    """
    if case.named:
        return sign_in(lines[-1]) in case.named
    return not any(line.startswith(NOT_LEARNING) for line in lines)


def main() -> None:
    cases = FAULTS | HEALTHY
    for name in sys.argv[1:] or cases:
        began = time.monotonic()
        lines = lines_of(train(cases[name]))
        right = "ok " if verdict(cases[name], lines) else "BAD"
        print(f"{right} {name} ({time.monotonic() - began:.0f} s): {lines[-1]}", flush=True)


if __name__ == "__main__":
    main()
