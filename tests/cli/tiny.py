"""A task for tests of the command line, which only a trained policy solves; used by tiny.yaml."""

import os
import signal
import threading
import time

import gymnasium
import numpy as np
import torch

from tmrl_like.agents.agent import TrainingAgent
from tmrl_like.envs.sensor import Sensor
from tmrl_like.policies.actor import ActorModule

STEPS = 10


OBS = np.zeros(2, np.float32)
STRANGE = {  # which item of a step's result is another one, and what it is
    "nan": (0, np.full(2, np.nan, np.float32)),
    "shape": (0, np.zeros(3, np.float32)),
    "nothing": (0, None),
    "float16": (0, OBS.astype(np.float16)),
    "outside": (0, np.full(2, 7.0, np.float32)),
    "no_reward": (1, None),
    "no_end": (2, None),
    "no_info": (4, None),
}


class TinyEnv(gymnasium.Env):
    """Pressing the pedal (action 1) ends an episode after three steps; otherwise it costs 10
    steps.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def __init__(self, step_s=0.002, hangs=False, ends_by="", fails=False, returns=""):
        if fails:
            raise ConnectionError("no arm")
        self.step_s, self.hangs, self.ends_by = step_s, hangs, ends_by
        self.steps, self.returns = 0, returns
        self.random = np.random.default_rng(0)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self._obs(), {}

    def step(self, action):
        time.sleep(3600 if self.hangs else self.step_s)
        if self.ends_by == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        self.steps += 1
        if self.steps == 2 and self.returns:
            item, value = STRANGE[self.returns]
            result = [OBS, 0.0, False, False, {}]
            result[item] = value
            return tuple(result)
        terminated = self.steps >= 3 and float(action[0]) > 0.8
        noise = float(self.random.uniform(0.0, 0.01))
        return self._obs(), float(action[0]) - 1.0 - noise, terminated, self.steps >= STEPS, {}

    def _obs(self):
        return self.random.uniform(-1.0, 1.0, 2).astype(np.float32)


class ShiftingEnv(TinyEnv):
    """An environment that shifts actions in place."""

    def step(self, action):
        action += 0.5
        return super().step(action)


class OldEnv(TinyEnv):
    """An environment whose steps end as those of Gym did."""

    def step(self, action):
        obs, rew, terminated, _, info = super().step(action)
        return obs, rew, terminated, info


class OlderEnv(TinyEnv):
    """An environment whose reset returns an observation alone, as that of Gym did."""

    def reset(self, **options):
        return super().reset(**options)[0]


class ThreadedEnv(TinyEnv):
    """An environment that starts a thread which never ends."""

    def __init__(self):
        super().__init__()
        threading.Thread(target=threading.Event().wait, name="reader").start()


class ReusingEnv(TinyEnv):
    """An environment that returns the same array in each step, with other numbers."""

    obs = np.zeros(2, np.float32)

    def _obs(self):
        self.obs[:] = super()._obs()
        return self.obs


class TalkingEnv(TinyEnv):
    """An environment whose observations hold text."""

    observation_space = gymnasium.spaces.Tuple(
        (TinyEnv.observation_space, gymnasium.spaces.Text(9))
    )

    def _obs(self):
        return super()._obs(), "ready"


class SeedlessEnv(TinyEnv):
    """An environment whose reset takes no seed."""

    def reset(self):
        return super().reset()


class SlowCameraEnv(TinyEnv):
    """An environment with steps of 10 ms and a camera that takes 50 ms."""

    time_step_s = 0.01

    def __init__(self):
        super().__init__()
        self.sensors = [Sensor("the camera", lambda: time.sleep(0.05))]

    def reset(self, **options):
        # so that the camera's present value, or the one before, has been the newest for at least
        # this time
        time.sleep(0.05)
        return super().reset(**options)

    def close(self):
        self.sensors[0].close()


class TalkativeEnv(TinyEnv):
    """An environment that prints what the parts of a run say to it, too."""

    def reset(self, **options):
        print("episode begins\nepisode", {"number": 1}, "\nready")
        print("the arm moves", end="")
        return super().reset(**options)


class TinyActor(ActorModule):
    """An actor that presses as far as its first parameter says."""

    def __init__(self, observation_space, action_space, width=1):
        super().__init__(observation_space, action_space)
        self.pedal = torch.nn.Parameter(torch.zeros(width))

    def act(self, obs, test=False):
        return self.pedal[:1].detach().clamp(-1, 1).cpu().numpy()


def actor_that_presses(pedal, width=1):
    actor = TinyActor(TinyEnv.observation_space, TinyEnv.action_space, width)
    actor.pedal.data.fill_(pedal)
    return actor


class LoudActor(TinyActor):
    """An actor that presses too far where it explores."""

    def act(self, obs, test=False):
        return super().act(obs) if test else np.full(1, 1.5, np.float32)


class NoActor(ActorModule):
    """An actor without `act`."""


class TinyAgent(TrainingAgent):
    """An agent that presses a little further with each training step."""

    tunable = ("gain",)

    def __init__(
        self,
        observation_space,
        action_space,
        device="cpu",
        gain=0.02,
        fails=False,
        actor_cls=TinyActor,
    ):
        super().__init__(observation_space, action_space, device)
        self.actor = actor_cls(observation_space, action_space)
        self.gain, self.fails = gain, fails

    def train(self, batch):
        if self.fails:
            raise ZeroDivisionError("the agent of this test fails")
        self.actor.pedal.grad = torch.full_like(self.actor.pedal, self.gain)
        self.average_gradients(self.actor)
        with torch.no_grad():
            self.actor.pedal.add_(self.actor.pedal.grad).clamp_(-1, 1)
        return {"loss": 0.0}

    def get_actor(self):
        return self.actor


class TalkativeAgent(TinyAgent):
    """An agent that leaves a line open when it is made."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print("made", end="")


def drop_the_second(act, obs, rew, terminated, truncated, info):
    """Compress a sample wrongly: its second number is lost."""
    return act, np.array([obs[0], 0.0], np.float32), rew, terminated, truncated, info
