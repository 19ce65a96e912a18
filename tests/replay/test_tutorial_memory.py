"""Memories as users of tmrl write them, on samples of a worker that drives a real rtgym environment."""

from __future__ import annotations

import random

import numpy as np
import pytest
import rtgym
from gymnasium import spaces
from house import buffers_of

from tmrl_like import GenericGymEnv, MemoryDataloading, RolloutWorker, partial
from tmrl_like.cli.check import taken
from tmrl_like.delivery.options import OutboxOptions
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import ReplayMemory

LENGTH = 4


class Drone(rtgym.RealTimeGymInterface):
    """Positions and targets that tell every step from every other; episodes of 1 to 9 steps."""

    def __init__(self):
        self.steps_left = self.count = 0
        self.rng = random.Random(0)

    def get_observation_space(self):
        return spaces.Tuple([spaces.Box(-np.inf, np.inf, (1,)) for _ in range(4)])

    def get_action_space(self):
        return spaces.Box(-2.0, 2.0, (2,))

    def get_default_action(self):
        return np.zeros(2, np.float32)

    def send_control(self, control):
        pass

    def reset(self, seed=None, options=None):
        self.steps_left = self.rng.randint(1, 9)
        return self.observe(), {}

    def get_obs_rew_terminated_info(self):
        self.steps_left -= 1
        return self.observe(), -float(self.count), self.steps_left <= 0, {}

    def observe(self):
        self.count += 1
        return [np.array([self.count + k / 4], np.float32) for k in range(4)]


class Explorer(ActorModule):
    def act(self, obs, test=False):
        return np.random.default_rng().uniform(-2, 2, 2).astype(np.float32)


def get_local_buffer_sample(prev_act, obs, rew, terminated, truncated, info):
    return prev_act, obs[:4], rew, terminated, truncated, info


class PlainMemory(MemoryDataloading):
    """The action buffer of an observation: the actions of the last samples, whatever happened there."""

    def __init__(self, act_buf_len, **kwargs):
        self.act_buf_len = act_buf_len
        super().__init__(**kwargs)

    def append_buffer(self, buffer):
        columns = [list(column) for column in zip(*buffer.memory, strict=True)]
        if len(self) > 0:
            self.data = [stored + new for stored, new in zip(self.data, columns, strict=True)]
        else:
            self.data = columns
        to_trim = len(self) - self.memory_size
        if to_trim > 0:
            self.data = [column[to_trim:] for column in self.data]

    def __len__(self):
        return max(0, len(self.data[0]) - self.act_buf_len - 1) if self.data else 0

    def get_transition(self, item):
        last, now = item + self.act_buf_len - 1, item + self.act_buf_len
        actions = self.data[0][item : now + 1]
        return self.transition(last, now, actions[:-1], actions[1:])

    def transition(self, last, now, last_buffer, new_buffer):
        acts, obs, rews, terminateds, truncateds, infos = self.data
        last_obs, new_obs = (*obs[last], *last_buffer), (*obs[now], *new_buffer)
        return last_obs, acts[now], rews[now], new_obs, terminateds[now], truncateds[now], infos[now]


class CorrectingMemory(PlainMemory):
    """As the tutorial was written later: it steps aside from resets, and moves the actions before one up by a place."""

    def get_transition(self, item):
        done = [terminated or truncated for terminated, truncated in zip(self.data[3], self.data[4], strict=True)]
        if done[item + self.act_buf_len - 1]:
            item += -1 if item == len(self) - 1 else 1
        last, now = item + self.act_buf_len - 1, item + self.act_buf_len
        actions = self.data[0][item : now + 1]
        ends = [k for k in range(self.act_buf_len) if done[item + k]]
        last_buffer, new_buffer = actions[:-1], actions[1:]
        if ends:
            if ends[-1] < self.act_buf_len - 1:
                if item == 0:
                    return self.get_transition(random.randint(1, len(self) - 1))
                last_buffer[: ends[-1] + 1] = self.data[0][item - 1 : item + ends[-1]]
            new_buffer[: ends[-1]] = self.data[0][item : item + ends[-1]]
        return self.transition(last, now, last_buffer, new_buffer)


def make_env(**keys):
    config = rtgym.DEFAULT_CONFIG_DICT | {"interface": Drone, "act_buf_len": LENGTH, "time_step_timeout_factor": 1e6}
    config |= {"time_step_duration": 0.001, "start_obs_capture": 0.001, "ep_max_length": 8}
    return GenericGymEnv("real-time-gym-ts-v1", {"config": config | keys})


def fly(memories, episodes, **keys):
    """Fill the memories with training episodes; some test episodes are in between."""
    options = {"standalone": True, "crc_debug": True}
    with (
        RolloutWorker(partial(make_env, **keys), Explorer, get_local_buffer_sample, **options) as worker,
        taken(worker, OutboxOptions(max_samples=7)) as take,
    ):
        for episode in range(episodes):
            worker.collect_train_episode()
            if episode % 5 == 4:
                worker.run_episode()
        for buffer in buffers_of(take()):
            for memory in memories:
                memory.append(buffer)


@pytest.mark.parametrize("memory_cls", [PlainMemory, CorrectingMemory, ReplayMemory])
@pytest.mark.parametrize(
    "keys",
    [{"reset_act_buf": True}, {"reset_act_buf": False}, {"reset_act_buf": False, "last_act_on_reset": True}],
    ids=["reset fills", "default replaces", "last stays"],
)
def test_memories_that_look_back_over_the_last_actions_pass_crc_debugging_across_resets(memory_cls, keys):
    memory = memory_cls(act_buf_len=LENGTH, crc_debug=True)
    fly([memory], 30, **keys)
    for item in range(len(memory)):
        memory[item]
    assert memory.crc_checked >= len(memory) > 50
