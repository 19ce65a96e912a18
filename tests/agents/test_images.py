"""Observations with images: alone, in histories, or beside vectors."""

from copy import deepcopy
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from gymnasium import spaces
from kit.boxes import CAR, box, picture
from kit.learners import batch_of, rows_of, small, train
from torch.testing import assert_close

from tmrl_like.agents import (
    CategoricalActor,
    DiscreteEnsembleCritic,
    DiscreteSACAgent,
    EnsembleCritic,
    SACAgent,
    SquashedGaussianActor,
)
from tmrl_like.agents.images import ConvolutionEncoder, shifted
from tmrl_like.agents.observations import Encoder
from tmrl_like.agents.pretraining import encoder_of, save_encoder, train_encoder
from tmrl_like.agents.sac import critic_loss, td_target
from tmrl_like.agents.space_layout import picture_spec
from tmrl_like.errors import ConfigError
from tmrl_like.policies.pictures import PICTURE_FEATURES

ACT = box(2, 2)


@pytest.mark.parametrize(
    ("shape", "channels", "shift"),
    [
        ((3, 36, 48), 3, 2),
        ((96, 96, 3), 3, 4),
        ((20, 20), 1, 1),
        ((2, 3, 8, 8), 6, 0),
        ((2, 40, 40, 3), 6, 2),
    ],
)
def test_an_image_of_any_layout_becomes_features_and_small_ones_are_shifted_less(
    shape, channels, shift
):
    space = picture(*shape)
    encoder = Encoder(space)
    assert encoder.images[0].convolutions[0].in_channels == channels
    features = encoder(rows_of(space, 3))
    assert (features.shape, features.dtype) == ((3, PICTURE_FEATURES), torch.float32)
    assert picture_spec(space).largest_shift == shift
    scale, offset = picture_spec(space).scaling()
    assert (offset, 255 * scale + offset) == pytest.approx((-0.5, 0.5))


def test_a_history_of_vectors_is_not_an_image():
    assert Encoder(picture(4, 19)).size == 76
    assert Encoder(box(1, 20, 20)).size == 400


def test_the_last_layer_is_averaged_over_regions():
    box = picture(4, 64, 64)
    plain, averaged = ConvolutionEncoder(box, pooled=0), ConvolutionEncoder(box, pooled=2)
    averaged.load_state_dict(plain.state_dict())
    assert (plain.size, averaged.size) == (64 * 16, 64 * 4)
    images = rows_of(box, 3)
    last = plain(images).view(3, 64, 2, 2, 2, 2)
    assert_close(averaged(images), last.mean(dim=(3, 5)).flatten(1))


def make_agent(agent_cls=SACAgent, act_space=ACT, **options):
    networks = (CategoricalActor, DiscreteEnsembleCritic) if agent_cls is DiscreteSACAgent else ()
    return small(agent_cls, (CAR, act_space), *networks, **options)


def pictures_of(module):
    return [p.detach().clone() for p in module.encoder.images.parameters()]


DROQ = partial(EnsembleCritic, hidden_sizes=(16,), dropout=0.01)


@pytest.mark.parametrize(
    ("agent_cls", "act_space", "options"),
    [
        (SACAgent, ACT, {"actor_polyak": 0.0, "critic_cls": DROQ}),
        (SACAgent, ACT, {"smoothness": 0.3}),
        (DiscreteSACAgent, spaces.Discrete(3), {}),
    ],
)
def test_all_networks_see_by_one_encoder(agent_cls, act_space, options):
    agent = make_agent(agent_cls, act_space, **options)
    before = pictures_of(agent.critic)
    (metrics,) = train(agent, 1)
    assert np.isfinite(list(metrics.values())).all()
    after = pictures_of(agent.critic)
    assert not any(map(torch.equal, before, after))
    for module in (agent.actor, agent.get_actor(), agent.critic, agent.critic_target):
        assert all(map(torch.equal, after, pictures_of(module)))


def test_a_step_is_what_the_losses_say():
    """The encoder's gradient comes from the critics' loss alone, with this step's features; targets
    are computed without gradients. Held-out batches are not shifted.
    """
    agent, batch = make_agent(actor_polyak=0.0, smoothness=0.3), batch_of((CAR, ACT), rows=8)
    twin = deepcopy(agent)
    encoder = twin.critic.encoder

    def loss_of(is_shifted):
        torch.manual_seed(1)
        with torch.no_grad():
            next_obs = encoder.see(batch.next_obs, shift=is_shifted)
        obs = encoder.see(batch.obs, shift=is_shifted)
        with torch.no_grad():
            next_act, log_prob = twin.actor.sample(next_obs)
            next_q, scaled = twin.critic_target(next_obs, next_act), log_prob + 2 * np.log(2.0)
            alpha = twin.temperature()
            target = td_target(batch.rew, batch.terminated, next_q, scaled, alpha, twin.gamma)
        return critic_loss(twin.critic(obs, batch.act), target)

    torch.manual_seed(1)
    held_out = agent.evaluate(batch)["loss_critic"]
    assert_close(held_out, loss_of(is_shifted=False).detach())
    torch.manual_seed(1)
    agent.train(batch)
    twin.critic.zero_grad()
    loss_of(is_shifted=True).backward()
    for own, other in zip(agent.critic.parameters(), twin.critic.parameters(), strict=True):
        assert_close(own.grad, other.grad)


class EncoderLast(EnsembleCritic):
    """Critics whose encoder is the last of their parts."""

    def make_layers(self, *args):
        super().make_layers(*args)
        encoder = self.encoder
        del self.encoder
        self.encoder = encoder


@pytest.mark.parametrize("critic_cls", [EnsembleCritic, EncoderLast])
def test_the_target_is_an_average_of_the_critics_behind_the_encoder(critic_cls):
    agent = make_agent(polyak=0.75, critic_cls=critic_cls)
    before = deepcopy(agent.critic_target.hidden)
    agent.train(batch_of((CAR, ACT), rows=8))
    networks = before, agent.critic.hidden, agent.critic_target.hidden
    for old, trained, new in zip(*(network.parameters() for network in networks), strict=True):
        assert_close(new, 0.75 * old + 0.25 * trained.detach())


class UsersCritic(torch.nn.Module):
    """Critics that look at the speed alone."""

    def __init__(self, observation_space, action_space, n_critics):
        super().__init__()
        self.net = torch.nn.Linear(3, n_critics)

    def forward(self, obs, act):
        return self.net(torch.cat((obs["speed"], act), 1)).T


class ActorBySpeed(SquashedGaussianActor):
    """A user's actor that reads the speed from the observation."""

    def forward(self, obs):
        mean, log_std = super().forward(obs)
        return mean + obs["speed"], log_std


class DrawingBySpeed(SquashedGaussianActor):
    """A user's actor that draws by the speed, which it reads from the observation."""

    def sample(self, obs):
        act, log_prob = super().sample(obs)
        return act + obs["speed"], log_prob


class CriticBySpeed(EnsembleCritic):
    """A user's critics that read the speed from the observation."""

    def forward(self, obs, act):
        return super().forward(obs, act) + obs["speed"][:, 0]


@pytest.mark.parametrize(
    "own",
    [
        {"actor_cls": ActorBySpeed},
        {"actor_cls": DrawingBySpeed},
        {"critic_cls": CriticBySpeed},
        {"critic_cls": UsersCritic},
    ],
)
def test_a_network_of_ones_own_gets_raw_observations_and_the_actor_s_encoder_is_its_own(own):
    agent = make_agent(**own)
    before = pictures_of(agent.actor)
    (*_, metrics) = train(agent, 2)
    assert np.isfinite(list(metrics.values())).all()
    assert not any(map(torch.equal, before, pictures_of(agent.actor)))
    with pytest.raises(ConfigError, match="with the networks that ship"):
        encoder_of(agent)


# -- shifts


def test_each_picture_of_a_batch_is_shifted_by_itself_and_its_edge_repeated():
    picture = torch.arange(1, 65, dtype=torch.uint8).view(8, 8)
    rows = torch.arange(8)
    possible = [
        picture[(rows + down).clamp(0, 7)][:, (rows + right).clamp(0, 7)].tolist()
        for down, right in product(range(-2, 3), repeat=2)
    ]
    torch.manual_seed(0)
    moved = shifted(picture.expand(300, 2, 8, 8).contiguous(), 2)
    assert moved.dtype == torch.uint8
    assert torch.equal(moved[:, 0], moved[:, 1])  # histories and colours are shifted together
    assert {possible.index(found) for found in moved[:, 0].tolist()} == {*range(25)}


# -- trained beforehand


def level_of(size, generator):
    """Return observations whose pictures have one brightness each."""
    level = torch.rand(size, 1, generator=generator)
    picture = (255 * level).byte().view(-1, 1, 1, 1).expand(size, 16, 16, 3)
    return {"camera": picture, "speed": torch.zeros(size, 1)}


def test_an_encoder_is_trained_written_and_begun_with(tmp_path):
    file, generator = tmp_path / "encoder.safetensors", torch.Generator().manual_seed(0)
    encoder = encoder_of(make_agent())
    missing = [*train_encoder(encoder, (level_of(32, generator) for _ in range(40)))]
    assert missing[0] > 0.5
    assert missing[-1] < 0.1
    save_encoder(encoder, file)
    agent = make_agent(picture_encoder=str(file))
    trained = [p.detach() for p in encoder.images.parameters()]
    for module in (agent.critic, agent.critic_target, agent.actor, agent.get_actor()):
        assert all(map(torch.equal, pictures_of(module), trained))
    agent.train(batch_of((CAR, ACT), rows=8))


def test_an_encoder_of_other_pictures_is_refused_in_one_line(tmp_path):
    file = tmp_path / "encoder.safetensors"
    save_encoder(Encoder(picture(4, 64, 64)), file)
    misfit = r"picture_encoder is .*: weights do not fit the encoder of these pictures: 0\."
    for path, said in ((file, misfit), ("nothing", r"picture_encoder is .*nothing")):
        with pytest.raises(ConfigError, match=said):
            make_agent(picture_encoder=str(path))
    with pytest.raises(ConfigError, match="SACAgent has no encoder of pictures that can be train"):
        SACAgent(box(1, 3), ACT, picture_encoder=str(file))
