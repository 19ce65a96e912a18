"""The drone and the arm learn in simulated time, with their experiments' memory, agent and
preprocessors.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kit.simulated import Robot
from kit.solo import drive, learn, return_of
from simulated_drone import SimulatedDroneEnv

from tmrl_like import load_experiment
from tmrl_like.envs.drone import MirroredFlights
from tmrl_like.envs.robot.robot_env import OtherTargets


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "make", "augment", "steps", "first_steps", "least_return"),
    [
        ("drone", SimulatedDroneEnv, MirroredFlights, 600, 20, -3.0),
        ("robot", Robot, OtherTargets, 1200, 40, -6.0),
    ],
)
def test_targets_are_reached_after_half_a_minute_of_flight_and_a_minute_of_the_arm(
    name, make, augment, steps, first_steps, least_return, seed
):
    pytest.importorskip("mujoco")
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    experiment = load_experiment(name)
    env, view = make(seed=seed), experiment.obs_preprocessor
    agent = experiment.agent_cls(env.observation_space, env.action_space, "cpu")
    memory = experiment.memory_cls(sample_preprocessor=augment(seed))
    memory.seed(seed)
    actor = learn(env, agent, memory, steps, first_steps, ratio=20, view=view)
    tests = [drive(make(seed=1000 + number), actor, view=view) for number in range(40)]
    reached = np.mean([samples[-1].terminated for samples in tests])
    total = np.mean([return_of(samples) for samples in tests])
    print(f"{name}, seed {seed}: return {total:.2f}, reached {reached:.0%}")
    assert reached >= 0.95
    assert total > least_return
