"""The action buffer of a real rtgym environment, rebuilt bit for bit."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import rtgym
from rtgym.envs.real_time_env import RealTimeEnv

from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.replay import DropHistory, ReplayMemory
from tmrl_like.testing.memories import Step, cut, packed
from tmrl_like.types import Sample


class Counter(rtgym.RealTimeGymInterface):
    """Observes a counter; episodes of 1 to 5 steps end by themselves."""

    def __init__(self):
        self.count = 0
        self.left = 0
        self.rng = np.random.default_rng(0)

    def send_control(self, control):
        pass

    def reset(self, seed=None, options=None):
        self.left = int(self.rng.integers(1, 6))
        return [self._observe()], {}

    def get_obs_rew_terminated_info(self):
        self.left -= 1
        return [self._observe()], np.float32(self.count), self.left <= 0, {}

    def _observe(self):
        self.count += 1
        return np.array([self.count], np.float32)

    def get_observation_space(self):
        return gymnasium.spaces.Tuple((gymnasium.spaces.Box(0, np.inf, (1,)),))

    def get_action_space(self):
        return gymnasium.spaces.Box(-1, 1, (2,))

    def get_default_action(self):
        return np.zeros(2, np.float32)


@pytest.mark.parametrize(("reset_act_buf", "last_act_on_reset"), [(True, False), (False, False), (False, True)])
def test_every_observation_of_rtgym_is_rebuilt(reset_act_buf, last_act_on_reset):
    keys = {"act_buf_len": 3, "reset_act_buf": reset_act_buf, "last_act_on_reset": last_act_on_reset}
    config = rtgym.DEFAULT_CONFIG_DICT | keys | {"interface": Counter, "time_step_timeout_factor": 1e6}
    config |= {"time_step_duration": 0.001, "start_obs_capture": 0.001}
    env = RealTimeEnv(config)
    steps = rollout(env, 200)
    env.stop()
    memory = ReplayMemory(act_buf_len=3, crc_debug=True)
    for piece in cut(steps, [9]):
        memory.append(packed(piece, "w", lambda sample: DropHistory(3)(*sample)))
    for item in range(len(memory)):
        memory[item]
    assert memory.crc_checked == len(memory) > 80


def rollout(env, count):
    rng = np.random.default_rng(1)
    steps, obs = [], None
    while len(steps) < count:
        if obs is None:
            obs, _ = env.reset()
            for act in actions_of_reset(env, obs):
                steps.append(Step(Sample(act, obs, 0.0, False, False, {}), True, (None, *[0] * 5)))
            continue
        act = rng.uniform(-1, 1, 2).astype(np.float32)
        new_obs, rew, terminated, truncated, info = env.step(act)
        original = (obs, act, rew, new_obs, terminated, truncated)
        steps.append(Step(Sample(act, new_obs, rew, terminated, truncated, info), False, original))
        obs = None if terminated or truncated else new_obs
    return steps
