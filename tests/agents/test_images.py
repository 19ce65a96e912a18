"""Observations with images: alone, in histories, beside vectors."""

from copy import deepcopy
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from gymnasium import spaces

from tmrl_like.agents import (
    CategoricalActor,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    EnsembleCritic,
    REDQAgent,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.agents.images import ConvolutionEncoder, shifted
from tmrl_like.agents.observations import Encoder
from tmrl_like.agents.pretraining import encoder_of, save_encoder, train_encoder
from tmrl_like.agents.sac import critic_loss
from tmrl_like.agents.space_layout import picture_spec
from tmrl_like.errors import ConfigError
from tmrl_like.policies.pictures import PICTURE_FEATURES
from tmrl_like.trainer.snapshot import load_object_state, object_state
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
    assert features.shape == (3, PICTURE_FEATURES)
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
    encoder.convolutions[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
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
    assert features.shape == (4, 1 + PICTURE_FEATURES)
    speed = obs["speed"] if isinstance(obs, dict) else obs[1]
    torch.testing.assert_close(features[:, :1], speed * 0.6 - 3.0)


def make_agent(agent_cls=SACAgent, act_space=ACT, critic=None, **options):
    actor_cls = CategoricalActor if agent_cls is DiscreteSACAgent else SquashedGaussianActor
    critic_cls = DiscreteEnsembleCritic if agent_cls is DiscreteSACAgent else EnsembleCritic
    nets = {"actor_cls": partial(actor_cls, **NETS), "critic_cls": partial(critic_cls, **NETS, **(critic or {}))}
    return agent_cls(CAR, act_space, **nets, **options)


def make_batch(act_space=ACT):
    obs, next_obs = (collate([CAR.sample() for _ in range(8)]) for _ in range(2))
    act = collate([act_space.sample() for _ in range(8)])
    return Batch(obs, act, torch.rand(8), next_obs, torch.zeros(8), torch.zeros(8))


def pictures_of(module):
    return [p.detach().clone() for p in module.encoder.images.parameters()]


@pytest.mark.parametrize("critic", [{}, {"layer_norm": True, "dropout": 0.01}], ids=["plain", "DroQ"])
@pytest.mark.parametrize("actor_polyak", [0.0, 0.9])
@pytest.mark.parametrize("agent_cls", [SACAgent, REDQAgent, DiscreteSACAgent])
def test_all_networks_see_by_one_encoder(agent_cls, actor_polyak, critic):
    act_space = spaces.Discrete(3) if agent_cls is DiscreteSACAgent else ACT
    agent = make_agent(agent_cls, act_space, critic, actor_polyak=actor_polyak, policy_delay=1)
    modules = agent.actor, agent.get_actor(), agent.critic, agent.critic_target
    before = pictures_of(agent.critic)
    metrics = agent.train(make_batch(act_space))
    assert all(torch.isfinite(value) for value in metrics.values())
    after = pictures_of(agent.critic)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    for module in modules:
        assert all(map(torch.equal, after, pictures_of(module)))


def test_the_critics_alone_train_the_encoder():
    agent = make_agent(lr_critic=0.0)
    before, head = pictures_of(agent.critic), agent.actor.head.weight.detach().clone()
    agent.train(make_batch())
    assert all(map(torch.equal, before, pictures_of(agent.critic)))
    assert not torch.equal(head, agent.actor.head.weight)


def test_a_step_is_what_the_losses_say():
    """The encoder's gradient is that of the critics' loss, by features of this step; the target's are without one."""
    agent, batch = make_agent(actor_polyak=0.0), make_batch()
    twin = deepcopy(agent)
    torch.manual_seed(1)
    agent.train(batch)
    torch.manual_seed(1)
    encoder = twin.critic.encoder
    with torch.no_grad():
        next_obs = encoder.see(batch.next_obs, shift=True)
    seen = batch._replace(obs=encoder.see(batch.obs, shift=True), next_obs=next_obs)
    q_NB, target_B = twin.critic(seen.obs, seen.act), twin._td_target(seen)
    twin.critic.zero_grad()
    critic_loss(q_NB, target_B).backward()
    for own, other in zip(agent.critic.parameters(), twin.critic.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_the_target_is_an_average_of_the_critics_behind_the_encoder():
    agent = make_agent(polyak=0.75)
    before = [p.clone() for p in agent.critic_target.hidden.parameters()]
    agent.train(make_batch())
    for old, new, own in zip(
        before, agent.critic_target.hidden.parameters(), agent.critic.hidden.parameters(), strict=True
    ):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * own.detach())


def test_a_checkpoint_goes_on_as_before():
    agent, other = make_agent(), make_agent()
    agent.train(make_batch())
    load_object_state(other, deepcopy(object_state(agent)))
    batch = make_batch()
    for each in (agent, other):
        torch.manual_seed(2)
        each.train(batch)
    for own, theirs in zip(agent.critic.parameters(), other.critic.parameters(), strict=True):
        assert torch.equal(own, theirs)
    assert all(map(torch.equal, pictures_of(agent.critic), pictures_of(other.get_actor())))


def test_a_critic_of_another_kind_keeps_the_actors_encoder_its_own():
    class Blind(torch.nn.Module):
        def __init__(self, observation_space, action_space, n_critics=2):
            super().__init__()
            self.value = torch.nn.Parameter(torch.zeros(n_critics, 1))

        def forward(self, obs, act, members=None):
            return self.value * act.sum(dim=1)

    agent = SACAgent(CAR, ACT, actor_cls=partial(SquashedGaussianActor, **NETS), critic_cls=Blind)
    before = pictures_of(agent.actor)
    agent.train(make_batch())
    agent.train(make_batch())
    assert not any(torch.equal(a, b) for a, b in zip(before, pictures_of(agent.actor), strict=True))


def test_held_out_losses_are_of_pictures_as_they_are():
    agent, batch = make_agent(), make_batch()
    losses = []
    for _ in range(2):
        torch.manual_seed(3)
        losses.append(agent.evaluate(batch)["loss_critic"])
    assert losses[0] == losses[1]
    torch.manual_seed(3)
    with torch.no_grad():
        target_B = agent._td_target(batch)
        expected = critic_loss(agent.critic(batch.obs, batch.act), target_B)
    torch.testing.assert_close(losses[0], expected)


# -- shifts


def test_each_picture_of_a_batch_is_shifted_by_itself_and_its_edge_repeated():
    pictures = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).repeat(300, 2, 1, 1)
    torch.manual_seed(0)
    moved = shifted(pictures, 2)
    assert moved.dtype == torch.uint8
    rows = torch.arange(8)
    seen = set()
    for picture in moved:
        assert torch.equal(picture[0], picture[1])  # a history, and colours, as one
        for down, right in product(range(-2, 3), repeat=2):
            expected = pictures[0, 0][(rows + down).clamp(0, 7)][:, (rows + right).clamp(0, 7)]
            if torch.equal(picture[0], expected):
                seen.add((down, right))
                break
        else:
            pytest.fail("no shift gives this picture")
    assert len(seen) == 25


def test_small_pictures_are_shifted_less():
    shapes = {(4, 64, 64): 4, (84, 84, 3): 4, (3, 36, 48): 2, (20, 20): 1, (8, 8): 0}
    found = {shape: picture_spec(spaces.Box(0, 255, shape, np.uint8)).largest_shift for shape in shapes}
    assert found == shapes
    tiny = torch.rand(3, 1, 8, 8)
    assert torch.equal(shifted(tiny, 0), tiny)


def test_pictures_are_averaged_to_sides_of_about_sixteen():
    for shape in ((4, 64, 64), (3, 60, 80), (3, 240, 320), (1, 23, 40), (96, 96, 3)):
        spec = picture_spec(spaces.Box(0, 255, shape, np.uint8))
        assert 12 <= min(spec.averaged()) < 24


# -- trained beforehand


def level_of(size, generator):
    """Pictures of one brightness each."""
    level = torch.rand(size, 1, generator=generator)
    picture = (255 * level).byte().view(-1, 1, 1, 1).expand(size, 16, 16, 3)
    return {"camera": picture, "speed": torch.zeros(size, 1)}


def test_an_encoder_is_trained_written_and_begun_with(tmp_path):
    generator = torch.Generator().manual_seed(0)
    encoder = encoder_of(make_agent())
    missing = [*train_encoder(encoder, (level_of(32, generator) for _ in range(120)))]
    assert missing[0] > 0.5
    assert missing[-1] < 0.1
    save_encoder(encoder, tmp_path / "encoder.safetensors")
    agent = make_agent(picture_encoder=str(tmp_path / "encoder.safetensors"))
    for module in (agent.critic, agent.critic_target, agent.actor, agent.get_actor()):
        assert all(map(torch.equal, pictures_of(module), (p.detach() for p in encoder.images.parameters())))
    agent.train(make_batch())


def test_an_encoder_of_other_pictures_is_refused_in_one_line(tmp_path):
    file = tmp_path / "encoder.safetensors"
    other = spaces.Box(0, 255, (4, 64, 64), np.uint8)
    save_encoder(Encoder(other), file)
    with pytest.raises(
        ConfigError, match=r"picture_encoder is .*: weights do not fit the encoder of these pictures: 0\."
    ):
        make_agent(picture_encoder=str(file))
    with pytest.raises(ConfigError, match=r"picture_encoder is .*nothing"):
        make_agent(picture_encoder=str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="SACAgent has no encoder of pictures that can be trained beforehand"):
        SACAgent(spaces.Box(-1.0, 1.0, (3,)), ACT, picture_encoder=str(file))


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
