"""A dummy step while the environment waits: after a sleep, the processor's caches hold little of a
control loop.

A rehearsal brings what it touches into the caches before the observation arrives: the code of a
step, the policy's parameters, and the place where the next sample goes.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from tmrl_like.envs.deferred_log import DeferredLog
from tmrl_like.envs.supervision import SupervisedEnv
from tmrl_like.types import Action, Observation
from tmrl_like.worker.arbiter import Arbiter
from tmrl_like.worker.control_loop import ControlLoop, Info, Stepped
from tmrl_like.worker.intake import PolicyIntake


def rehearsal_of(loop: ControlLoop) -> Callable[[], None]:
    """Return a function that rehearses once, in the control thread; it does nothing before the
    first observation.

    It steps a double of the control loop, with counts, an episode and an environment of its own. It
    leaves no trace: no random number is drawn, no policy taken, no sample stored. It calls none of
    the user's code, neither the compressor nor the preprocessor. Of actors, it calls only numpy
    networks, which keep no state.
    """
    real = loop.driver
    driver = _Understudy(_Still(real), real.actor, PolicyIntake(real.intake.probe), real=real)
    double = ControlLoop(driver, loop.worker, deque(maxlen=1))

    def rehearse() -> None:
        obs = real.intake.probe.newest
        if obs is None:
            return
        double.counts.env_steps = 1  # so that the next step is not one that calls `_look_after`
        try:
            double.step(obs, test=True, collect_samples=True)
        except Exception:  # the control loop's own step reports it, for this observation
            return
        if loop.samples is not None:
            loop.samples.rehearse()

    return rehearse


class _Still(SupervisedEnv):
    """A stand-in environment that does nothing and returns the newest observation that the policy
    has seen.
    """

    def __init__(self, driver: Arbiter) -> None:
        real = driver.env
        self.env = SimpleNamespace(
            observation_space=real.env.observation_space,
            action_space=real.env.action_space,
            default_action=real.default_action,
        )
        self.time_step_s, self.overrun_after_s = 0.0, math.inf
        # its lines are never written: the real environment's log has the same ones
        self.log = DeferredLog(logging.getLogger("tmrl_like.worker"))
        self._probe = driver.intake.probe

    def step(self, action: Action) -> Stepped:
        info: Info = {}
        return self._probe.newest, 0.0, False, False, info


@dataclass(eq=False, kw_only=True)
class _Understudy(Arbiter):
    """Chooses actions as the policy of another arbiter does.

    Attributes:
        real: the other arbiter.
    """

    real: Arbiter

    def act(self, obs: Observation, test: bool) -> Action:
        actor = self.real.actor.in_numpy()  # itself, if it is a network: no other one is called
        if actor is None:
            return self.env.default_action
        actor.flatten(obs)
        return actor.network.act(test)
