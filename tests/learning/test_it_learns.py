"""SAC learns each task to its stated return, over three seeds; and a tiny one in seconds."""

import dataclasses

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from tasks import TASKS, Task, learn


@pytest.mark.learn
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_learnt_to_its_stated_return(name, seed):
    *_, (_, totals) = learn(TASKS[name], seed)
    assert np.mean(totals) >= TASKS[name].goal


class Steer(gymnasium.Env):
    """Ten steps on a line; each costs the distance from its middle."""

    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Box(-0.5, 0.5, (1,), np.float32)
    default_action = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.choice([-0.9, 0.9]), 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place, self.steps = float(np.clip(self.place + action[0], -1.0, 1.0)), self.steps + 1
        return np.array([self.place], np.float32), -abs(self.place), False, self.steps == 10, {}


def test_a_tiny_task_is_learnt_in_seconds():
    """The best return is -0.4: one step of 0.5 and one of 0.4."""
    task = Task(env=lambda seed: Steer(), steps=500, goal=-1.0, first_steps=100, evaluations=1)
    options = {"gamma": 0.8, "polyak": 0.9, "lr_actor": 3e-3, "lr_critic": 3e-3, "entropy_coef": 0.02}
    task = dataclasses.replace(task, agent=options | {"learn_entropy_coef": False}, memory={"batch_size": 64})
    ((_, totals),) = learn(task, seed=0)
    assert np.mean(totals) > task.goal
