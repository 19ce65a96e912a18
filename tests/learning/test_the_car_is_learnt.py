"""A car on the stand-in for CARLA learns to follow its lane around the bend, without a camera."""

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("carla", reason="there is no wheel of carla for this Python")

import carla_stand_in as stand_in

from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs.actions import actions_of_reset
from tmrl_like.envs.carla import CarlaSyncEnv, RouteOptions, SensorOptions
from tmrl_like.policies.actor import ActorModule
from tmrl_like.replay import DropHistory, ReplayMemory
from tmrl_like.types import Buffer, Info


def drive(env: CarlaSyncEnv, actor: ActorModule, test: bool) -> tuple[list[Any], float, str]:
    """One episode: its samples, its return in metres, and what ended it."""
    compress = DropHistory(2)
    obs, info = env.reset()
    resets = [(act, obs, 0.0, False, False, Info(info, is_reset=True)) for act in actions_of_reset(env, obs)]
    samples = [compress(*reset) for reset in resets]
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        action = actor.act_(obs, test)
        obs, rew, terminated, truncated, info = env.step(action)
        samples.append(compress(action, obs, rew, terminated, truncated, Info(info)))
        total += float(rew)
    return samples, total, info.get("ended_by", "")


@pytest.mark.learn
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_car_follows_its_lane_to_the_end_of_the_road_after_seven_minutes_of_driving(seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    simulator = stand_in.Simulator()
    env = CarlaSyncEnv(
        0.1,
        ep_max_length=300,
        sensors=SensorOptions(camera=None),
        route=RouteOptions(stuck_after_s=5.0),
        client_cls=partial(stand_in.Client, simulator=simulator),
    )
    small = {"hidden_sizes": (64, 64)}
    agent = SACAgent(
        env.observation_space,
        env.action_space,
        "cpu",
        actor_cls=partial(SquashedGaussianActor, **small),
        critic_cls=partial(EnsembleCritic, **small),
        gamma=0.97,
        polyak=0.99,
        lr_actor=1e-3,
        lr_critic=1e-3,
        lr_entropy=1e-3,
    )
    memory = ReplayMemory(batch_size=128, act_buf_len=2, memory_size=20_000)
    memory.seed(seed)
    env.reset(seed=seed)
    steps = trained = 0
    while steps < 4000:
        samples, *_ = drive(env, agent.get_actor(), test=False)
        memory.append(Buffer(samples, "car"))
        steps += len(samples) - 1
        while steps > 500 and trained < 2 * steps:
            agent.train(memory.sample())
            trained += 1
    drives = [drive(env, agent.get_actor(), test=True) for _ in range(10)]
    env.close()
    simulator.close()
    assert sum(ended_by == "end of route" for *_, ended_by in drives) >= 9
    assert np.mean([total for _, total, _ in drives]) > 130
