"""A network that learns to recognise success, judged as an environment would judge it."""

import msgspec
import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import box, picture

from tmrl_like.agents.success_training import (
    JudgedEpisode,
    SuccessNetwork,
    errors_of,
    split,
    train_success,
)
from tmrl_like.errors import ConfigError
from tmrl_like.policies.success_model import SuccessModel, write_success_model
from tmrl_like.policies.weights import copied


def an_episode(random, success, steps=12):
    """Return an episode of pictures with a bright square, which has a dark middle in the last four
    pictures of a success.
    """
    pictures = np.zeros((steps, 20, 24), np.uint8)
    for step in range(steps):
        row, column = random.integers(0, 12), random.integers(0, 16)
        pictures[step, row : row + 8, column : column + 8] = 200
        if success and step >= steps - 4:
            pictures[step, row + 2 : row + 6, column + 2 : column + 6] = 0
    return JudgedEpisode(pictures, success)


def episodes(num):
    random = np.random.default_rng(0)
    return [an_episode(random, i % 2 == 0) for i in range(num)]


def test_success_is_learnt_wherever_it_is():
    torch.manual_seed(0)
    learnt, held_out = split(episodes(40), 0.5)
    assert errors_of(train_success(learnt, 100, 2), held_out, 0.5, 2, 2) == (20, 0, 0)


@pytest.mark.parametrize("shape", [(8, 9), (8, 9, 7), (2, 32, 32, 3), (130, 140)])
def test_the_form_without_torch_computes_the_same_of_the_camera_that_was_learnt_from(
    shape, tmp_path
):
    network, file = SuccessNetwork(shape), tmp_path / "a.safetensors"
    spec = msgspec.structs.replace(network.spec, path=("camera",))
    write_success_model(file, spec, copied(network.state_dict()).content)
    for camera, newest in ((shape, ()), ((3, *shape), (-1,))):  # one picture, and a history
        others = {"a spare": picture(*camera), "wrist": picture(*camera)}  # before it, and after
        space = spaces.Dict({"arm": box(1, 2), "camera": picture(*camera), **others})
        obs = space.sample()
        (wanted,) = network.probabilities(obs["camera"][newest][None])
        assert SuccessModel(str(file), space)(obs) == pytest.approx(float(wanted), abs=1e-5)


class Known(SuccessNetwork):
    """A network whose answer is known: the first pixel is the probability in percent."""

    def __init__(self):
        super().__init__((8, 8))

    def probabilities(self, pictures):
        return torch.from_numpy(pictures[:, 0, 0] / 100.0)


@pytest.mark.parametrize(
    ("percents", "success", "positives", "negatives"),
    [
        ([0, 0, 0, 0, 0, 0, 95, 95], True, 0, 0),
        ([0, 0, 0, 0, 95, 95, 0, 0], True, 0, 0),  # before the last 2, but not too early
        ([0, 0, 95, 95, 0, 0, 95, 95], True, 1, 0),  # too early
        ([0, 0, 0, 0, 95, 0, 95, 80], True, 0, 1),
        ([95, 0, 95, 0, 95, 0, 95, 80], False, 0, 0),
        ([0, 0, 0, 0, 0, 0, 95, 95], False, 1, 0),
    ],
)
def test_whole_episodes_are_judged(percents, success, positives, negatives):
    pictures = np.zeros((8, 8, 8), np.uint8)
    pictures[:, 0, 0] = percents
    errors = errors_of(Known(), [JudgedEpisode(pictures, success)], 0.9, 2, 2)
    assert errors == (1, positives, negatives)
    assert errors.accuracy == 1 - positives - negatives


def test_of_either_label_a_share_is_held_out():
    learnt, held_out = split(episodes(12), 0.3)
    assert [sum(episode.success for episode in part) for part in (learnt, held_out)] == [4, 2]
    assert [len(learnt), len(held_out)] == [8, 4]
    with pytest.raises(ConfigError, match="labelled as failures is 1; expected 2 or more"):
        split(episodes(3), 0.3)
