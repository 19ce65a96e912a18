"""The robot arm with a controller that misses some of its targets: an agent corrects it within a
minute of practice.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from solo import drive, learn
from test_the_robot_is_learnt import ACTIONS, ARM_MEMORY, ClocklessRobotEnv, arm_agent

from tmrl_like.envs.residual import ResidualEnv
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.policies.actor import ActorModule

ZERO_RAD = 0.042  # by which the controller is wrong about the shoulder


def controller(obs: Any, zero_rad: float = ZERO_RAD) -> Any:
    """Velocities towards the joint positions that inverse kinematics finds for the target."""
    shoulder, elbow = map(float, obs[0])
    cos, sin = np.cos(shoulder + elbow), np.sin(shoulder + elbow)
    along, left = map(float, obs[3])
    x, y = obs[2][0] + cos * along - sin * left, obs[2][1] + sin * along + cos * left
    upper, fore = robot.LINKS_M
    goal = np.arccos(np.clip((x * x + y * y - upper**2 - fore**2) / (2 * upper * fore), -1.0, 1.0))
    turned = np.arctan2(y, x) - np.arctan2(fore * np.sin(goal), upper + fore * np.cos(goal))
    way = np.array((turned + zero_rad - shoulder, goal - elbow))
    return np.clip(4.0 * way, -robot.MAX_SPEED, robot.MAX_SPEED)


def make_env(seed: int, monkeypatch: pytest.MonkeyPatch) -> ResidualEnv:
    return ResidualEnv(partial(ClocklessRobotEnv, seed, monkeypatch), controller, scale=0.3)


class Uncorrected(ActorModule):
    def act(self, obs: Any, test: bool = False) -> Any:
        return np.zeros(2, np.float32)


def share_reached(actor: ActorModule, monkeypatch: pytest.MonkeyPatch) -> float:
    view, envs = robot.TargetUpClose(), (make_env(1000 + i, monkeypatch) for i in range(60))
    return float(np.mean([drive(env, actor, ACTIONS, True, view)[2] for env in envs]))


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_agent_reaches_what_the_controller_misses_after_a_minute(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    made = make_env(seed, monkeypatch)
    spaces = made.observation_space, made.action_space
    before = share_reached(Uncorrected(*spaces), monkeypatch)
    # the arm whose clock counts is the newest
    env, view = make_env(seed, monkeypatch), robot.TargetUpClose()
    agent = arm_agent(*spaces)
    memory = ARM_MEMORY()
    memory.seed(seed)

    def collect() -> list[Any]:
        return drive(env, agent.get_actor(), ACTIONS, False, view)[0]

    learn(agent, memory, collect, 1200, first_steps=100, ratio=20)
    after = share_reached(agent.get_actor(), monkeypatch)
    print(f"seed {seed}: the controller reaches {before:.0%}, corrected {after:.0%}")
    assert before < 0.7
    assert after >= 0.97
