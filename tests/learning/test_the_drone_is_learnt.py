"""The drone of config/drone.yaml, without its clock: memory, agent and preprocessor as they ship
must learn it.
"""

import numpy as np
import pytest
import torch
from simulated_drone import SimulatedDroneEnv
from solo import drive, learn, seen_alike

from tmrl_like.agents import EnsembleCritic, SACAgent, SquashedGaussianActor
from tmrl_like.base.functional import partial
from tmrl_like.envs.drone import MirroredFlights, TargetInView
from tmrl_like.replay import ReplayMemory


@pytest.mark.learn
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
def test_the_drone_reaches_its_target_after_half_a_minute_of_flight(seed: int) -> None:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    env, view = SimulatedDroneEnv(seed=seed), TargetInView()
    agent = SACAgent(
        env.observation_space,
        env.action_space,
        "cpu",
        actor_cls=partial(SquashedGaussianActor, hidden_sizes=(64, 64)),
        critic_cls=partial(EnsembleCritic, layer_norm=False),
        gamma=0.95,
        polyak=0.98,
        lr_actor=1e-3,
        lr_critic=1e-3,
        lr_entropy=2e-3,
        entropy_coef=0.1,
    )
    memory = ReplayMemory(
        batch_size=128,
        act_buf_len=4,
        obs_preprocessor=view,
        sample_preprocessor=MirroredFlights(seed),
        memory_size=10_000,
    )
    memory.seed(seed)
    learn(
        agent,
        memory,
        lambda: drive(env, agent.get_actor(), 4, False, view)[0],
        600,
        first_steps=20,
        ratio=20,
    )
    flights = [
        drive(SimulatedDroneEnv(seed=1000 + i), agent.get_actor(), 4, True, view) for i in range(40)
    ]
    reached, total = (np.mean([flight[part] for flight in flights]) for part in (2, 1))
    print(f"seed {seed}: return {total:.2f}, reached {reached:.0%}")
    assert reached >= 0.95
    assert total > -3.0


def test_the_view_of_the_target_is_the_same_for_arrays_and_batches() -> None:
    obs = (
        tuple(np.array([v], np.float32) for v in (0.1, -0.2, 0.3, 0.4))
        + (np.ones(2, np.float32),) * 4
    )
    alone = seen_alike(TargetInView(), obs)
    assert alone[2].item() == pytest.approx(0.1)
    assert alone[1].item() == pytest.approx(0.7 * 0.6 / 0.61**0.5)


@pytest.mark.parametrize("seed", range(8))
def test_a_mirrored_flight_is_a_flight(seed: int) -> None:
    """The way to the target and all actions turn together: their lengths and the angles between
    them stay.
    """
    generator = torch.Generator().manual_seed(seed)
    obs = tuple(torch.rand(5, 1, generator=generator) - 0.5 for _ in range(4))
    obs += tuple(torch.rand(5, 2, generator=generator) - 0.5 for _ in range(4))
    act, rew, flags = torch.rand(5, 2, generator=generator), torch.rand(5), torch.zeros(5)
    new_obs, new_act, new_rew, new_next, *_ = MirroredFlights(seed)(
        obs, act, rew, obs, flags, flags
    )
    for way in (0, 2):
        before, after = torch.cat(obs[way : way + 2], -1), torch.cat(new_obs[way : way + 2], -1)
        assert torch.allclose(before.norm(dim=-1), after.norm(dim=-1))
        assert torch.allclose((before * act).sum(-1), (after * new_act).sum(-1), atol=1e-6)
        assert torch.allclose((before * obs[5]).sum(-1), (after * new_obs[5]).sum(-1), atol=1e-6)
    assert new_rew is rew
    assert all(torch.equal(a, b) for a, b in zip(new_obs, new_next, strict=True))


def test_each_transition_of_a_batch_is_mirrored_by_itself() -> None:
    """Of many flights along (1, 2) all eight directions are seen in one batch."""
    one, two = torch.ones(100, 1), torch.full((100, 1), 2.0)
    vector, flags = torch.cat((one, two), -1), torch.zeros(100)
    obs = (one, two, one, two, vector)
    last_obs, act, _, next_obs, *_ = MirroredFlights(0)(obs, vector, flags, obs, flags, flags)
    corners = {(x, y) for x in (-1.0, 1.0) for y in (-2.0, 2.0)}
    assert {tuple(row) for row in act.tolist()} == corners | {(y, x) for x, y in corners}
    for seen in (last_obs, next_obs):
        assert all(torch.equal(torch.cat(pair, -1), act) for pair in (seen[:2], seen[2:4]))
        assert torch.equal(seen[4], act)
