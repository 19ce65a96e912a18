"""Trains the included experiments, in simulated time and in one thread, with and without a fault,
and reads the learning doctor's verdict.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformAction, TransformObservation, TransformReward
from kit.simulated import simulated

from tmrl_like.agents import SquashedGaussianActor
from tmrl_like.metrics.reading import read_records
from tmrl_like.policies.network import LOG_STD_MAX, LOG_STD_MIN
from tmrl_like.trainer.diagnosis import LEARNING, NOT_LEARNING, SIGNS


class LimitTerminates(TimeLimit):
    """A time limit that says that it terminates."""

    def step(self, action):
        obs, rew, terminated, truncated, info = super().step(action)
        return obs, rew, terminated or truncated, False, info


class NeverTerminates(TransformReward):
    """Other rewards, and episodes that all run to their limit."""

    def step(self, action):
        obs, rew, _, truncated, info = super().step(action)
        return obs, rew, False, truncated, info


class Blind(SquashedGaussianActor):
    """An actor that ignores its observation."""

    def forward(self, obs):
        mean, log_std = self.outputs(0.0 * self.encoder(obs)).chunk(2, dim=-1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


OVERRIDES = {
    "drone": "worker.test_episode_interval=1 trainer.start_training=60 "
    "trainer.max_training_steps_per_env_step=3",
    "robot": "trainer.start_training=100 trainer.max_training_steps_per_env_step=3",
}


@dataclass(frozen=True)
class Case:
    """A training with or without a fault.

    Attributes:
        experiment: the name of one that ships.
        named: signs, one of which must be named; empty if there is no fault.
        wrap: puts the fault around the environment.
        keys: overrides of the experiment.
        rounds: duration, in rounds of 200 training steps.
        may_learn: whether the fault delays learning and, with some seeds, does not prevent it.
    """

    experiment: str
    named: tuple[str, ...] = ()
    wrap: Callable[[Any], Any] = lambda env: env
    keys: str = ""
    rounds: int = 18
    seed: int = 0
    may_learn: bool = False


def rewarded(change):
    return lambda env: TransformReward(env, change)


def observed(change, space=None):
    return lambda env: TransformObservation(env, change, space)


_WIDE_DRONE = spaces.Tuple([spaces.Box(-1e3, 1e3, (size,)) for size in (1, 1, 1, 1, 2, 2, 2, 2)])
_NOT_AUGMENTED = "memory.sample_preprocessor=null"
FAULTS = {
    "reward is always 0": Case("drone", ("reward",), rewarded(lambda rew: 0.0)),
    "reward is the same in each step": Case(
        "robot",
        ("reward",),
        lambda env: NeverTerminates(env, lambda rew: -1.0),
        _NOT_AUGMENTED,
    ),
    "rewards of a millionth": Case(
        "drone", ("reward too small",), rewarded(lambda rew: 1e-6 * rew), _NOT_AUGMENTED
    ),
    "rewards of ten thousand": Case(
        "robot",
        ("reward too large",),
        rewarded(lambda rew: 1e4 * rew),
        _NOT_AUGMENTED,
        may_learn=True,
    ),
    "sensor is dead": Case(
        "drone", ("still",), observed(lambda obs: (*(0 * o for o in obs[:4]), *obs[4:]))
    ),
    "millimetres, bounds in metres": Case(
        "robot",
        ("observation too large",),
        observed(lambda obs: (*(1000 * o for o in obs[:4]), *obs[4:])),
        f"obs_preprocessor=null {_NOT_AUGMENTED}",
    ),
    "bounds far too wide": Case(
        "drone", ("observation too small",), observed(lambda obs: obs, _WIDE_DRONE)
    ),
    "actor learns too fast": Case("drone", ("ignores",), keys="agent.lr_actor=0.3"),
    "entropy coefficient far too large": Case(
        "drone",
        ("random", "reward too small"),
        keys="agent.entropy_coef=20 agent.learn_entropy_coef=false",
        rounds=27,
    ),
    "actions do nothing": Case(
        "robot",
        ("flat",),
        lambda env: TransformAction(env, lambda action: 0.0 * action, env.action_space),
        rounds=54,
    ),
    "critics learn too fast": Case("robot", ("values", "critics"), keys="agent.lr_critic=0.3"),
    "critics do not learn": Case("robot", ("critics stay",), keys="agent.lr_critic=0"),
    "episodes are cut after three steps": Case(
        "robot", ("short episodes",), lambda env: TimeLimit(env, 3)
    ),
    "time limit is said to terminate": Case(
        "robot", ("time limit",), lambda env: LimitTerminates(env, 12), _NOT_AUGMENTED
    ),
    "memory of 40 samples": Case(
        "robot", ("memory",), keys="memory.memory_size=40", may_learn=True
    ),
    "one training step in a hundred": Case(
        "drone",
        ("few training steps",),
        keys="trainer.max_training_steps_per_env_step=0.01 trainer.steps=1",
        rounds=24,
    ),
    "no policy is published": Case(
        "robot", ("old policy",), keys="trainer.update_model_interval=1000000", rounds=27
    ),
    "actor ignores its observation": Case(
        "robot", ("ignores",), keys="actor.class_path=faults.Blind"
    ),
    "actor does not learn": Case("robot", ("policy stays",), keys="agent.lr_actor=0"),
    "no value beyond the next step": Case("drone", ("gamma",), keys="agent.gamma=0"),
}
HEALTHY = {
    f"{name} {seed}": Case(name, rounds=rounds, seed=seed)
    for name, all_rounds in {
        "drone": (36, 36, 8),
        "robot": (18, 12, 8),
        "pendulum": (20, 10),
        "racing_lidar": (45, 23),
    }.items()
    for seed, rounds in enumerate(all_rounds, start=1)
}


def train(case):
    """Train; return the doctor's line of each round."""
    torch.set_num_threads(1)
    usual = f"trainer.epochs=1 trainer.rounds={case.rounds} trainer.max_minutes=.inf"
    overrides = f"{usual} seed={case.seed} {OVERRIDES.get(case.experiment, '')} {case.keys}"
    experiment = simulated(case.experiment, overrides)
    env = case.wrap(experiment.env())
    both = env.observation_space, env.action_space
    experiment = dataclasses.replace(experiment, spaces=lambda: both)
    with (
        tempfile.TemporaryDirectory() as home,
        mock.patch.dict(os.environ, TMRL_LIKE_HOME=home),
    ):
        with experiment.make_in_process({"env_cls": lambda: env}) as trainer:
            trainer.run()
        records = read_records(experiment.paths.metrics)
        return [record["learning"] for record in records if record["kind"] == "round"]


def sign_in(line):
    """Return the name of the sign in a line, "flat" for returns that do not rise, or an empty
    string.
    """
    said = line.removeprefix(NOT_LEARNING)
    if said.startswith("the return does not rise"):
        return "flat"
    return next(
        (name for name, (_, text) in SIGNS.items() if said.startswith(text.partition("{")[0])), ""
    )


def verdict(case, lines):
    """Whether the fault was named at the end, or before the training learnt in spite of it; in a
    healthy training, whether no line ever said that it does not learn.
    """
    if case.named:
        named = [line for line in lines if sign_in(line) in case.named]
        return lines[-1] in named or (case.may_learn and bool(named) and lines[-1] == LEARNING)
    return not any(line.startswith(NOT_LEARNING) for line in lines)
