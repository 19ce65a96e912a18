"""The benefit and the cost of a chain of limits: the gears of an arm in training, and
microseconds.

    python tests/benchmarks/action_chain.py [--variants free limited smooth] [--seeds 0 1 …]
                                            [--steps 6000]

*Gears*: the simulated arm in simulated time with the agent of config/robot.yaml, and a training
step per decision; 6,000 decisions are five minutes. The gears break if the mean acceleration of a
joint over a time-step exceeds 10 rad/s²; the motors can do 20. The controller's own braking at the
end of a joint's range does not count. Training continues after a break, so that there is a return
to compare, of 40 test episodes: its gain over that of an arm that stands still, as a share of the
first variant's gain.

*µs*: CPU time of the chain for a float32 action. The limit converts the action to Python's numbers
and back to an array.
"""

import sys
import time

import numpy as np
import torch
from _harness import TESTS, benchmark, in_turns
from gymnasium import spaces

sys.path.append(str(TESTS / "learning"))
from curves import Robot
from solo import drive
from solo import practise as practise_alone

from tmrl_like import load_experiment
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.robot.physics import LIMITS
from tmrl_like.policies.actor import ActorModule
from tmrl_like.worker.action_chain import (
    AccelerationLimit,
    ActionChain,
    LowPass,
    OneEuroFilter,
    RateLimit,
)

TIME_STEP_S = 0.05
GEARS_RAD_S2 = 10.0
LIMIT_RAD_S2 = 6.0  # actions are velocities
VARIANTS = {  # the chain, and `smoothness`
    "free": ([], 0.0),
    "limited": ([RateLimit(LIMIT_RAD_S2)], 0.0),
    "smooth": ([], 0.3),
}
TIMED = {
    "LowPass, RateLimit": [LowPass(2.0), RateLimit(4.0)],
    "OneEuroFilter, RateLimit, AccelerationLimit": [
        OneEuroFilter(2.0, 0.5),
        RateLimit(4.0),
        AccelerationLimit(20.0),
    ],
}


class Geared(Robot):
    """The arm, which records the largest acceleration in each step."""

    def __init__(self, seed):
        super().__init__(seed=seed)
        self.seen_rad_s2 = []

    def step(self, action):
        data = self.world.arm.data
        speeds, was_free = data.qvel.copy(), is_free(data.qpos)
        made = super().step(action)
        changes = np.abs(data.qvel - speeds) * (was_free & is_free(data.qpos))
        self.seen_rad_s2.append(float(changes.max()) / TIME_STEP_S)
        return made


def is_free(position_rad):
    """Return for each joint whether it is within its range; at its end the controller brakes,
    whatever is commanded.
    """
    low, high = np.transpose(LIMITS)
    return (low < position_rad) & (position_rad < high)


class Driver:
    """A policy and its chain."""

    def __init__(self, env, actor, parts):
        self._actor, self._chain = actor, ActionChain(parts)
        self._chain.connect(env.action_space, env.default_action, TIME_STEP_S)

    def reset(self):
        self._actor.reset()
        self._chain.begin()

    def act_(self, obs, test=False):
        return self._chain(self._actor.act_(obs, test))


class Still(ActorModule):
    """An actor that keeps the arm still."""

    def act(self, obs, test=False):
        return np.zeros(2, np.float32)


def mean_return(actor, parts, episodes):
    view = robot.TargetUpClose()
    envs = (Geared(1000 + i) for i in range(episodes))
    return float(np.mean([drive(env, Driver(env, actor, parts), True, view)[1] for env in envs]))


def practise(options, name, seed):
    """Train; return the acceleration of each step, and the mean return in tests afterwards."""
    parts, smoothness = VARIANTS[name]
    torch.manual_seed(seed)
    env, view, arm = Geared(seed), robot.TargetUpClose(), load_experiment("robot")
    agent = arm.agent_cls(env.observation_space, env.action_space, "cpu", smoothness=smoothness)
    memory = arm.memory_cls(sample_preprocessor=robot.OtherTargets(seed))
    memory.seed(seed)
    driver = Driver(env, agent.get_actor(), parts)
    practise_alone(env, driver, agent, memory, options.steps, 100, ratio=1, view=view)
    return env.seen_rad_s2, mean_return(agent.get_actor(), parts, options.episodes)


def gears(options):
    torch.set_num_threads(1)
    env = Geared(0)
    still = mean_return(Still(env.observation_space, env.action_space), [], options.episodes)
    free = 0.0
    for name in options.variants:
        seen, returns = zip(*(practise(options, name, seed) for seed in options.seeds), strict=True)
        above = [np.array(one) > GEARS_RAD_S2 for one in seen]
        broken = [one for one in above if one.any()]
        free = free or float(np.mean(returns))
        yield {
            "what": f"gears, {name}",
            "broken": f"{len(broken)} of {len(above)}",
            "after, s": [TIME_STEP_S * float(one.argmax()) for one in broken] if broken else "",
            "steps above, %": [100.0 * float(one.mean()) for one in above],
            "most, rad/s²": [max(one) for one in seen],
            "return": list(returns),
            "share of the first's": (float(np.mean(returns)) - still) / (free - still),
        }


def costs(parts, size, repeats):
    """Return the CPU time of a call in µs, of the chain and of the limit."""
    space = spaces.Box(-1.0, 1.0, (size,), np.float32)
    actions = [
        np.array(one, np.float32)
        for one in np.random.default_rng(0).uniform(-1.0, 1.0, (1000, size))
    ]
    chain = ActionChain(parts)
    chain.connect(space, np.zeros(size, np.float32), TIME_STEP_S)

    def us(call):
        started_ns = time.thread_time_ns()
        for action in actions:
            call(action)
        return (time.thread_time_ns() - started_ns) / len(actions) / 1000.0

    return in_turns(
        repeats,
        ours=lambda: us(chain),
        limit=lambda: us(lambda a: np.array(a.tolist(), np.float32)),
    )


def measure(options):
    yield from gears(options)
    for name, parts in TIMED.items():
        for size in (4, 6):
            yield {
                "what": f"{name}, {size} numbers, µs",
                **costs(parts, size, options.repeats),
                "goal": 2,
            }


if __name__ == "__main__":
    benchmark(
        __doc__,
        measure,
        variants=list(VARIANTS),
        seeds=list(range(10)),
        steps=6000,
        repeats=200,
        episodes=40,
        quick={
            "variants": ["free", "limited"],
            "seeds": [0],
            "steps": 200,
            "episodes": 2,
            "repeats": 20,
        },
    )
