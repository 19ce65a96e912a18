"""The robot arm with a controller that misses some of its targets: an agent corrects it within a minute of practice."""

from functools import partial

import numpy as np
import pytest
from solo import begin, drive, learn
from test_the_robot_is_learnt import ACTIONS, ClocklessRobotEnv, robot_agent, share_reached

from tmrl_like.envs.residual import ResidualEnv
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import ReplayMemory

ZERO_RAD = 0.042  # by which the controller is wrong about the shoulder


def controller(obs, zero_rad=ZERO_RAD):
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


def make_env(seed, monkeypatch):
    return ResidualEnv(partial(ClocklessRobotEnv, seed, monkeypatch), controller, scale=0.3)


class Uncorrected(ActorModule):
    def act(self, obs, test=False):
        return np.zeros(2, np.float32)


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_an_agent_reaches_what_the_controller_misses_after_a_minute(seed, monkeypatch):
    pytest.importorskip("mujoco")
    begin(seed)
    made = make_env(seed, monkeypatch)
    reached = partial(share_reached, partial(make_env, monkeypatch=monkeypatch), episodes=60)
    before = reached(Uncorrected(made.observation_space, made.action_space))
    env, view = make_env(seed, monkeypatch), robot.TargetUpClose()  # the arm whose clock counts is the newest
    agent = robot_agent(env)
    memory = ReplayMemory(batch_size=128, act_buf_len=ACTIONS, obs_preprocessor=view, memory_size=10_000)
    memory.seed(seed)

    def collect():
        return drive(env, agent.get_actor(), ACTIONS, False, view)[0]

    learn(agent, memory, collect, 1200, first_steps=100, ratio=20)
    after = reached(agent.get_actor())
    print(f"seed {seed}: the controller reaches {before:.0%}, corrected {after:.0%}")
    assert before < 0.7
    assert after >= 0.95
