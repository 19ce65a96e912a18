"""Memories written as for tmrl, with samples of a worker that drives a real rtgym environment."""

import random

import numpy as np
import pytest
import rtgym
from house import buffers_of
from kit.boxes import box
from kit.environments import acting
from kit.interfaces import Interface
from list_memory import ListMemory

from tmrl_like import GenericGymEnv, RolloutWorker, partial
from tmrl_like.cli.check import taken
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.replay import ReplayMemory

LENGTH = 4
Exploring = acting(lambda obs: box(2.0, 2).sample())


class Drone(Interface):
    """An interface with another observation in every step; episodes of 1 to 9 steps."""

    action_space = box(2.0, 2)
    count = 0
    rng = random.Random(0)

    def reset(self, seed=None, options=None):
        self.steps_left = self.rng.randint(1, 9)
        return super().reset(seed, options)

    def get_obs_rew_terminated_info(self):
        self.steps_left -= 1
        return self._observation(), -float(self.count), self.steps_left <= 0, {}

    def _observation(self):
        self.count += 1
        return [np.array([self.count], np.float32)]


def get_local_buffer_sample(prev_act, obs, *others):
    return prev_act, obs[:1], *others


def make_env(**keys):
    short = {"time_step_duration": 0.001, "start_obs_capture": 0.001, "ep_max_length": 8}
    patient = {"time_step_timeout_factor": 1e6, "interface": Drone, "act_buf_len": LENGTH}
    config = rtgym.DEFAULT_CONFIG_DICT | short | patient | keys
    return GenericGymEnv("real-time-gym-ts-v1", {"config": config})


@pytest.fixture(
    scope="module",
    params=[
        {"reset_act_buf": True},
        {"reset_act_buf": False},
        {"reset_act_buf": False, "last_act_on_reset": True},
    ],
    ids=["reset fills", "default replaces", "last stays"],
)
def buffers(request):
    """Buffers of thirty episodes, some of them tests, from a worker with CRC debugging."""
    options = {"standalone": True, "crc_debug": True}
    with (
        RolloutWorker(
            partial(make_env, **request.param), Exploring, get_local_buffer_sample, **options
        ) as worker,
        taken(worker, OutboxOptions(max_samples=7)) as take,
    ):
        for episode in range(30):
            worker.collect_train_episode()
            if episode % 5 == 4:
                worker.run_episode()
        return buffers_of(take())


@pytest.mark.parametrize("memory_cls", [ListMemory, partial(ReplayMemory, act_buf_len=LENGTH)])
def test_memories_that_look_back_over_the_last_actions_pass_crc_debugging_across_resets(
    memory_cls, buffers
):
    memory = memory_cls(crc_debug=True)
    for buffer in buffers:
        memory.append(buffer)
    for item in range(len(memory)):
        memory[item]
    assert memory.crc_checked >= len(memory) > 50
