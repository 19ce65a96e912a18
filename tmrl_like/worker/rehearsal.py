"""A step for nothing, while the environment waits: after a sleep the processor's caches hold little
of a control loop.

What a rehearsal touches (the code of a step, the policy's parameters, the place where the next
sample goes) is at hand when the observation comes.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace

from tmrl_like.envs.deferred_log import DeferredLog
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.types import Action, Observation
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.control_loop import ControlLoop, Info, Stepped
from tmrl_like.worker.intake import PolicyIntake


class Rehearsal:
    """Steps a double of a control loop, which has counts, an episode and an environment of its own.

    It leaves no trace: no random number is drawn, no policy taken, no sample stored. Of the user's
    code nothing is called, neither the compressor nor the preprocessor, and of actors only networks
    in numpy, which remember nothing.
    """

    def __init__(self, loop: ControlLoop) -> None:
        self._loop = loop
        real = loop.driver
        env = _Still(real)
        is_network = real.actor.in_numpy() is real.actor
        driver = _Understudy(
            env, real.actor, PolicyIntake(real.intake.probe), real=real, is_network=is_network
        )
        self._double = ControlLoop(env, driver, loop.worker, deque(maxlen=1))

    def __call__(self) -> None:
        """Do it, in the control thread; nothing before the first observation."""
        obs = self._loop.driver.intake.probe.newest
        if obs is None:
            return
        # so that the next one is none of those that look after something
        self._double.counts.env_steps = 1
        try:
            self._double.step(obs, test=True, collect_samples=True)
        except Exception:  # the control loop's own step has said so, of this observation
            return
        if self._loop.samples is not None:
            self._loop.samples.rehearse()


class _Still(SupervisedEnv):
    """Where nothing happens and nothing is started: an observation is the newest one that the
    policy has seen.
    """

    def __init__(self, driver: Arbiter) -> None:
        real = driver.env
        self.env = SimpleNamespace(
            observation_space=real.env.observation_space,
            action_space=real.env.action_space,
            default_action=real.default_action,
        )
        self.time_step_s, self.overrun_after_s = 0.0, math.inf
        # nobody writes it: the real one says the same
        self.log = DeferredLog(logging.getLogger("tmrl_like.worker"))
        self._probe = driver.intake.probe

    def step(self, action: Action) -> Stepped:
        info: Info = {}
        return self._probe.newest, 0.0, False, False, info


@dataclass(eq=False, kw_only=True)
class _Understudy(Arbiter):
    """Thinks as the policy of another arbiter does.

    Attributes:
        real: that one.
        is_network: whether its actors are networks in numpy; others are not asked.
    """

    real: Arbiter
    is_network: bool

    def act(self, obs: Observation, test: bool) -> Action:
        actor = self.real.actor.in_numpy() if self.is_network else None
        if actor is None:
            return self.env.default_action
        actor.flatten(obs)
        return actor.network.act(test)
