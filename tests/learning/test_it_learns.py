"""SAC learns each task to its stated return with three seeds, and a tiny task in seconds."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from kit.boxes import box

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
from tasks import TASKS, Task, practised


@pytest.mark.learn
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.goal is not None])
def test_a_task_is_learnt_to_its_stated_return(name, seed):
    assert return_at_the_end(TASKS[name], seed) >= TASKS[name].goal


def return_at_the_end(task, seed):
    """Return the median of the last three tests: one policy may be worse than those around it."""
    apart = task.steps // 8
    when = range(task.steps - 2 * apart, task.steps + 1, apart)
    return np.median([test() for step, test in practised(task, seed, task.steps) if step in when])


class Steer(gymnasium.Env):
    """Ten steps on a line, each with minus the distance from its middle as reward."""

    observation_space = box(1, 1)
    action_space = box(0.5, 1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.choice(np.float32([-0.9, 0.9]), 1), 0
        return self.place, {}

    def step(self, action):
        self.place, self.steps = np.clip(self.place + action, -1.0, 1.0), self.steps + 1
        return self.place, -float(abs(self.place[0])), False, self.steps == 10, {}


TINY = Task(
    env=Steer,
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
)


def test_a_tiny_task_is_learnt_in_seconds():
    """The best return is -0.4: one step of 0.5 and one of 0.4."""
    assert return_at_the_end(TINY, seed=0) > TINY.goal
