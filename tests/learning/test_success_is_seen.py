"""The robot arm before a camera: what success looks like, learnt from ten simulated minutes of
labelled play.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_a_controller_is_corrected import controller
from test_the_robot_is_learnt import TIME_STEP_S, ClocklessRobotEnv

from tmrl_like.agents.success_training import JudgedEpisode, errors_of, split, train_success
from tmrl_like.envs.vision import Shrink

MINUTES = 10
MISSES_RAD = (0.1, 0.5)  # by so much every other episode misses, about the shoulder
LAST, FRAMES = 3, 2


def play(env: ClocklessRobotEnv, zero_rad: float, camera: Shrink) -> tuple[list[Any], bool]:
    """An episode's pictures, and whether the arm rested on its target."""
    obs, _ = env.reset()
    pictures, terminated, truncated = [], False, False
    while not (terminated or truncated):
        obs, _, terminated, truncated, _ = env.step(controller(obs, zero_rad).astype(np.float32))
        pictures.append(camera(env.render()))
    return pictures, terminated


def labelled_play(seed: int, monkeypatch: pytest.MonkeyPatch) -> list[JudgedEpisode]:
    random, env, camera = (
        np.random.default_rng(seed),
        ClocklessRobotEnv(seed, monkeypatch),
        Shrink(grey=False),
    )
    episodes: list[JudgedEpisode] = []
    while sum(len(episode.pictures) for episode in episodes) * TIME_STEP_S < 60 * MINUTES:
        zero_rad = (
            random.choice((-1, 1)) * random.uniform(*MISSES_RAD) if len(episodes) % 2 else 0.0
        )
        pictures, terminated = play(env, zero_rad, camera)
        episodes.append(JudgedEpisode(np.stack(pictures), terminated))
    return episodes


@pytest.mark.learn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_success_is_seen_after_ten_minutes_of_labelled_play(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    torch.manual_seed(seed)
    learnt, held_out = split(labelled_play(seed, monkeypatch), 0.25)
    network = train_success(learnt, 1000, LAST)
    errors = errors_of(network, held_out, 0.9, FRAMES, LAST)
    print(f"seed {seed}: {len(learnt)} episodes learnt, {errors}: {errors.accuracy:.1%} right")
    assert errors.accuracy >= 0.97
