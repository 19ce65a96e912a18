"""A car on the stand-in for CARLA learns to follow its lane around the bend, without a camera."""

import numpy as np
import pytest
import torch

pytest.importorskip("carla", reason="there is no wheel of carla for this Python")

import carla_stand_in as stand_in
from kit.solo import drive, learn, return_of

from tmrl_like.agents import SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs.carla import CarlaSyncEnv, RouteOptions, SensorOptions
from tmrl_like.replay import ReplayMemory


@pytest.mark.learn
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_car_follows_its_lane_to_the_end_of_the_road_after_seven_minutes_of_driving(
    seed,
):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env = CarlaSyncEnv(
        0.1,
        ep_max_length=300,
        sensors=SensorOptions(camera=None),
        route=RouteOptions(stuck_after_s=5.0),
        client_cls=stand_in.Client,
    )
    agent = SACAgent(
        env.observation_space,
        env.action_space,
        actor_cls=partial(SquashedGaussianActor, hidden_sizes=(64, 64)),
        polyak=0.99,
        lr_actor=1e-3,
        lr_critic=1e-3,
        lr_entropy=1e-3,
    )
    memory = ReplayMemory(batch_size=128, act_buf_len=2, memory_size=20_000)
    memory.seed(seed)
    env.reset(seed=seed)
    actor = learn(env, agent, memory, 4000, first_steps=500, ratio=2)
    drives = [drive(env, actor) for _ in range(10)]
    env.close()
    assert sum(samples[-1].info.get("ended_by") == "end of route" for samples in drives) >= 9
    assert np.mean([return_of(samples) for samples in drives]) > 130
