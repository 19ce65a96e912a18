"""SAC learns each task to its stated return with three seeds, and a tiny task in seconds."""

import gymnasium
import numpy as np
import pytest
from kit.boxes import box
from tasks import TASKS, Task, learn


@pytest.mark.learn
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.goal is not None])
def test_a_task_is_learnt_to_its_stated_return(name, seed):
    *_, (_, totals) = learn(TASKS[name], seed)
    assert np.mean(totals) >= TASKS[name].goal


class Steer(gymnasium.Env):
    """Ten steps on a line, each with minus the distance from its middle as reward."""

    observation_space = box(1, 1)
    action_space = box(0.5, 1)
    default_action = np.zeros(1, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.choice([-0.9, 0.9]), 0
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place, self.steps = float(np.clip(self.place + action[0], -1.0, 1.0)), self.steps + 1
        return np.array([self.place], np.float32), -abs(self.place), False, self.steps == 10, {}


TINY = Task(
    env=lambda seed: Steer(),
    steps=500,
    goal=-1.0,
    agent={
        "gamma": 0.8,
        "polyak": 0.9,
        "lr_actor": 3e-3,
        "lr_critic": 3e-3,
        "entropy_coef": 0.02,
        "learn_entropy_coef": False,
    },
    memory={"batch_size": 64},
    first_steps=100,
    evaluations=1,
)


def test_a_tiny_task_is_learnt_in_seconds():
    """The best return is -0.4: one step of 0.5 and one of 0.4."""
    ((_, totals),) = learn(TINY, seed=0)
    assert np.mean(totals) > TINY.goal
