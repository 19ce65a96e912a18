"""Observations with images: alone, in histories, beside vectors."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.agents.images import IMAGE_FEATURES, ConvolutionEncoder
from tmrl_like.agents.observations import Encoder
from tmrl_like.types import Batch

GREY = spaces.Box(0, 255, (4, 64, 64), np.uint8)
ACT = spaces.Box(-2.0, 2.0, (2,))
CAR = spaces.Dict({"camera": spaces.Box(0, 255, (16, 16, 3), np.uint8), "speed": spaces.Box(0.0, 10.0, (1,))})
NETS = {"hidden_sizes": (16, 16)}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    CAR.seed(0)


def collate(samples):
    if isinstance(samples[0], dict):
        return {key: collate([s[key] for s in samples]) for key in samples[0]}
    if isinstance(samples[0], tuple):
        return tuple(collate(list(column)) for column in zip(*samples, strict=True))
    return torch.as_tensor(np.stack(samples))


@pytest.mark.parametrize(
    "space",
    [
        GREY,
        spaces.Box(0, 255, (3, 36, 48), np.uint8),
        spaces.Box(0, 255, (96, 96, 3), np.uint8),
        spaces.Box(0, 255, (20, 20), np.uint8),
        spaces.Box(0.0, 1.0, (2, 3, 8, 8), np.float32),
        spaces.Box(0, 255, (2, 40, 40, 3), np.uint8),
    ],
    ids=lambda s: str(s.shape),
)
def test_a_image_of_any_layout_becomes_features(space):
    encoder = Encoder(space)
    features = encoder(collate([space.sample() for _ in range(3)]))
    assert features.shape == (3, IMAGE_FEATURES)
    assert features.dtype == torch.float32


def test_channels_are_found_first_and_last():
    channels = [
        Encoder(spaces.Box(0, 255, shape, np.uint8)).images[0].convolutions[0].in_channels
        for shape in ((4, 64, 64), (64, 64, 3), (2, 40, 40, 3), (2, 3, 40, 40), (20, 20))
    ]
    assert channels == [4, 3, 6, 6, 1]


def test_a_history_of_vectors_is_not_an_image():
    assert Encoder(spaces.Box(-1.0, 1.0, (4, 19))).size == 76
    assert Encoder(spaces.Box(0, 255, (4, 19), np.uint8)).size == 76


def test_images_are_scaled_inside_the_model():
    encoder = Encoder(GREY).images[0]
    seen = []
    encoder.convolutions.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    encoder(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1).expand(2, 4, 64, 64))
    assert seen[0].amin().item() == pytest.approx(-0.5)
    assert seen[0].amax().item() == pytest.approx(0.5)


@pytest.mark.parametrize(("pooled", "regions"), [(1, 1), (2, 4), (4, 16)])
def test_the_last_layer_is_averaged_over_regions(pooled, regions):
    plain, averaged = ConvolutionEncoder(GREY, pooled=0), ConvolutionEncoder(GREY, pooled=pooled)
    averaged.load_state_dict(plain.state_dict())
    images = collate([GREY.sample() for _ in range(3)])
    assert (plain.size, averaged.size) == (64 * 16, 64 * regions)
    last = plain(images).view(3, 64, pooled, 4 // pooled, pooled, 4 // pooled)
    torch.testing.assert_close(averaged(images), last.mean(dim=(3, 5)).flatten(1))


@pytest.mark.parametrize("space", [CAR, spaces.Tuple(tuple(CAR.values()))], ids=["dict", "tuple"])
def test_vectors_and_images_together(space):
    obs = collate([space.sample() for _ in range(4)])
    encoder = Encoder(space)
    features = encoder(obs)
    assert features.shape == (4, 1 + IMAGE_FEATURES)
    speed = obs["speed"] if isinstance(obs, dict) else obs[1]
    torch.testing.assert_close(features[:, :1], speed * 0.6 - 3.0)


@pytest.mark.parametrize("critic", [{}, {"layer_norm": True, "dropout": 0.01}], ids=["plain", "DroQ"])
def test_a_step_trains_the_encoders_of_actor_critics_and_targets(critic):
    agent = SACAgent(
        CAR, ACT, actor_cls=partial(SquashedGaussianActor, **NETS), critic_cls=partial(EnsembleCritic, **NETS, **critic)
    )
    modules = agent.actor, agent.critic, agent.critic_target
    before = [[p.detach().clone() for p in module.encoder.parameters()] for module in modules]
    obs, act = (collate([space.sample() for _ in range(8)]) for space in (CAR, ACT))
    metrics = agent.train(Batch(obs, act, torch.rand(8), obs, torch.zeros(8), torch.zeros(8)))
    assert all(torch.isfinite(value) for value in metrics.values())
    for module, old in zip(modules, before, strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(old, module.encoder.parameters(), strict=True))


@pytest.mark.learn
@pytest.mark.timeout(600)
def test_an_agent_learns_from_the_brightness_of_a_image():
    torch.set_num_threads(1)
    space = spaces.Dict({"camera": spaces.Box(0, 255, (8, 8), np.uint8), "bias": spaces.Box(-1.0, 1.0, (1,))})
    agent = SACAgent(
        space,
        spaces.Box(-1.0, 1.0, (1,)),
        actor_cls=partial(SquashedGaussianActor, hidden_sizes=(32,)),
        critic_cls=partial(EnsembleCritic, hidden_sizes=(32,)),
        lr_actor=1e-3,
        lr_critic=1e-3,
        entropy_coef=0.01,
    )
    generator = torch.Generator().manual_seed(0)

    def observe(size):
        level = torch.rand(size, 1, generator=generator)
        image = (255 * level).byte().unsqueeze(-1).expand(size, 8, 8)
        return {"camera": image, "bias": torch.zeros(size, 1)}, level

    before = [p.detach().clone() for p in agent.critic.encoder.parameters()]
    for _ in range(1500):
        obs, level = observe(64)
        with torch.no_grad():
            act, _ = agent.actor.sample(obs)
        rew = -(act - (2 * level - 1)).square().sum(1)
        agent.train(Batch(obs, act, rew, obs, torch.ones(64), torch.zeros(64)))
    assert not any(torch.equal(a, b) for a, b in zip(before, agent.critic.encoder.parameters(), strict=True))
    for level in (0.1, 0.5, 0.9):
        image = np.full((8, 8), int(255 * level), np.uint8)
        action = agent.get_actor().act_({"camera": image, "bias": np.zeros(1, np.float32)}, test=True)
        assert action[0] == pytest.approx(2 * level - 1, abs=0.25)
