"""The robot arm from twenty demonstrations: cloned, and then half a minute of practice with them in
the memory.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from solo import drive, learn
from test_a_controller_is_corrected import controller
from test_the_robot_is_learnt import ACTIONS, ARM_ACTOR, ARM_MEMORY, ClocklessRobotEnv, arm_agent

from tmrl_like.agents.cloning import Shown, clone
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import WithDemonstrations
from tmrl_like.replay.collate import stack
from tmrl_like.replay.shown import shown_steps
from tmrl_like.types import Buffer

DEMONSTRATIONS = 20
VIEW = robot.TargetUpClose()


class Demonstrator(ActorModule):
    """A controller that is right about the arm."""

    def act(self, obs: Any, test: bool = False) -> Any:
        return np.float32(controller([part[0].numpy() for part in obs], zero_rad=0.0))


def share_reached(actor: ActorModule, monkeypatch: pytest.MonkeyPatch) -> float:
    envs = (ClocklessRobotEnv(1000 + i, monkeypatch) for i in range(40))
    return float(np.mean([drive(env, actor, ACTIONS, True, VIEW)[2] for env in envs]))


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twenty_demonstrations_and_half_a_minute_of_practice(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    arms = (ClocklessRobotEnv(500 + i, monkeypatch) for i in range(DEMONSTRATIONS))
    made = ClocklessRobotEnv(seed, monkeypatch)
    spaces = made.observation_space, made.action_space
    demonstrator = Demonstrator(*spaces)
    shown = [
        Buffer(drive(arm, demonstrator, ACTIONS, True)[0], f"shown {i}")
        for i, arm in enumerate(arms)
    ]
    observations, actions, episodes = zip(*shown_steps(shown, ARM_MEMORY, *spaces), strict=True)
    data = Shown(
        stack(observations, "cpu"),
        stack(actions, "cpu"),
        torch.tensor(episodes),
        past_actions=ACTIONS,
    )
    cloned = ARM_ACTOR(*spaces)
    [*_] = clone(cloned, *data.split(0.1), 2000)
    before = share_reached(cloned, monkeypatch)
    agent = arm_agent(*spaces)
    agent.start_from(cloned.weights())
    memory = WithDemonstrations(partial(ARM_MEMORY, sample_preprocessor=robot.OtherTargets(seed)))
    for buffer in shown:
        memory.demonstrations.append(buffer)
    memory.flush()
    memory.seed(seed)
    env = ClocklessRobotEnv(seed, monkeypatch)

    def collect() -> list[Any]:
        return drive(env, agent.get_actor(), ACTIONS, False, VIEW)[0]

    learn(agent, memory, collect, 600, first_steps=100, ratio=20)
    after = share_reached(agent.get_actor(), monkeypatch)
    print(f"seed {seed}: cloned {before:.0%}, after 30 s of practice {after:.0%}")
    assert before > 0.5
    assert after >= 0.95
