"""The arm of config/robot.yaml learns from a person's help, in simulated time: a nearly correct
controller, demonstrations, labelled pictures.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from kit.simulated import Robot
from kit.solo import drive, episode, learn

from tmrl_like import load_experiment
from tmrl_like.agents.cloning import Shown, clone
from tmrl_like.agents.success_training import JudgedEpisode, errors_of, split, train_success
from tmrl_like.envs.residual import ResidualEnv
from tmrl_like.envs.robot import robot_env as robot
from tmrl_like.envs.vision import Shrink
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import WithDemonstrations
from tmrl_like.replay.collate import stack
from tmrl_like.replay.shown import shown_steps
from tmrl_like.types import Buffer

pytestmark = [pytest.mark.learn, pytest.mark.timeout(900)]
TIME_STEP_S, VIEW = 0.05, robot.TargetUpClose()


@pytest.fixture(params=[0, 1, 2])
def seed(request):
    pytest.importorskip("mujoco")
    torch.manual_seed(request.param)
    torch.set_num_threads(1)
    return request.param


@pytest.fixture
def arm():
    return load_experiment("robot")


def controller(obs, wrong_rad=0.0):
    """Return joint velocities towards the solution of the inverse kinematics for the target.

    `wrong_rad` is an error added to the shoulder's angle.
    """
    shoulder, elbow = map(float, obs[0])
    cos, sin = np.cos(shoulder + elbow), np.sin(shoulder + elbow)
    along, left = map(float, obs[3])
    x, y = obs[2][0] + cos * along - sin * left, obs[2][1] + sin * along + cos * left
    upper, fore = robot.LINKS_M
    goal = np.arccos(np.clip((x * x + y * y - upper**2 - fore**2) / (2 * upper * fore), -1.0, 1.0))
    turned = np.arctan2(y, x) - np.arctan2(fore * np.sin(goal), upper + fore * np.cos(goal))
    way = np.array((turned + wrong_rad - shoulder, goal - elbow))
    return np.clip(4.0 * way, -robot.MAX_SPEED, robot.MAX_SPEED).astype(np.float32)


class Scripted(ActorModule):
    """An actor whose action is a given function of the observation."""

    def __init__(self, *spaces, script):
        super().__init__(*spaces)
        self._script = script

    def act(self, obs, test=False):
        return np.float32(self._script([part[0].numpy() for part in obs]))


def share_reached(actor, envs):
    """Return the share of targets reached, with one episode in each environment."""
    return float(np.mean([drive(env, actor, view=VIEW)[-1].terminated for env in envs]))


def test_an_agent_reaches_what_the_controller_misses_after_a_minute(seed, arm):
    def make_env(seed):
        return ResidualEnv(partial(Robot, seed=seed), partial(controller, wrong_rad=0.042), 0.3)

    def reached(actor):
        return share_reached(actor, map(make_env, range(1000, 1060)))

    env = make_env(seed)
    spaces = env.observation_space, env.action_space
    before = reached(Scripted(*spaces, script=lambda obs: (0.0, 0.0)))
    agent, memory = arm.agent_cls(*spaces, "cpu"), arm.memory_cls(sample_preprocessor=None)
    memory.seed(seed)
    after = reached(learn(env, agent, memory, 1200, first_steps=100, ratio=20, view=VIEW))
    print(f"seed {seed}: the controller reaches {before:.0%}, corrected {after:.0%}")
    assert before < 0.7
    assert after >= 0.97


def test_twenty_demonstrations_and_half_a_minute_of_practice(seed, arm):
    env = Robot(seed=seed)
    spaces = env.observation_space, env.action_space

    def reached(actor):
        return share_reached(actor, (Robot(seed=number) for number in range(1000, 1040)))

    demonstrator = Scripted(*spaces, script=controller)
    demonstrations = [
        Buffer(
            [arm.compressor(*sample) for sample in drive(Robot(seed=number), demonstrator)],
            f"shown {number}",
        )
        for number in range(500, 520)
    ]
    steps = shown_steps(demonstrations, arm.memory_cls, *spaces)
    observations, actions, episodes, _ = zip(*steps, strict=True)
    data = Shown(
        stack(observations, "cpu"),
        stack(actions, "cpu"),
        torch.tensor(episodes),
        past_actions=2,
    )
    cloned = arm.actor(*spaces)
    clone(cloned, *data.split(0.1), 2000)
    before = reached(cloned)
    agent = arm.agent_cls(*spaces, "cpu")
    agent.start_from(cloned.weights())
    memory = WithDemonstrations(
        partial(arm.memory_cls, sample_preprocessor=robot.OtherTargets(seed))
    )
    for buffer in demonstrations:
        memory.demonstrations.append(buffer)
    memory.flush()
    memory.seed(seed)
    after = reached(learn(env, agent, memory, 600, first_steps=100, ratio=20, view=VIEW))
    print(f"seed {seed}: cloned {before:.0%}, after 30 s of practice {after:.0%}")
    assert before > 0.5
    assert after >= 0.95


def labelled_play(seed, minutes):
    """Return episodes as pictures, with whether the arm came to rest on its target; in every other
    episode the controller is wrong.
    """
    random, env, camera = np.random.default_rng(seed), Robot(seed=seed), Shrink(grey=False)
    episodes = []
    while sum(len(judged.pictures) for judged in episodes) * TIME_STEP_S < 60 * minutes:
        miss_rad = random.choice((-1, 1)) * random.uniform(0.1, 0.5) if len(episodes) % 2 else 0.0
        pictures = []
        for sample in episode(env, partial(controller, wrong_rad=miss_rad)):
            if not sample.info.is_reset:
                pictures.append(camera(env.render()))
        episodes.append(JudgedEpisode(np.stack(pictures), sample.terminated))
    return episodes


def test_success_is_seen_after_ten_minutes_of_labelled_play(seed):
    last, frames = 3, 3
    learnt, held_out = split(labelled_play(seed, 10), 0.25)
    network = train_success(learnt, 1000, last)
    errors = errors_of(network, held_out, 0.5, frames, last)
    print(f"seed {seed}: {len(learnt)} episodes learnt, {errors}: {errors.accuracy:.1%} right")
    assert errors.accuracy >= 0.97
