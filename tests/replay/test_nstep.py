import math

import numpy as np
import pytest
import torch
from kit.memories import gather

from tmrl_like.errors import ConfigError, PipelineMismatchError
from tmrl_like.replay import ReplayMemory
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import Batch, Buffer, Info, Sample

GAMMA = 0.9


def episode(rewards, start=0.0, end=None):
    """Samples whose observations count up from `start`; `end`: the flag that the last one has."""
    samples = [Sample(0, np.float32(start), 0.0, False, False, Info(is_reset=True))]
    for k, rew in enumerate(rewards, start=1):
        samples.append(Sample(k, np.float32(start + k), rew, False, False, Info()))
    if end:
        samples[-1] = samples[-1]._replace(**{end: True})
    return samples


def filled(*episodes, **options):
    memory = ReplayMemory(**{"n_steps": 3, "gamma": GAMMA, **options})
    memory.append(Buffer([sample for samples in episodes for sample in samples], "w"))
    return memory


def transitions(memory):
    return [memory.get_transition(k) for k in range(len(memory))]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_return_ends_with_its_episode(end):
    memory = filled(episode([1.0, 2.0, 4.0, 8.0], end=end), episode([16.0, 32.0], start=10))
    found = transitions(memory)
    assert [t.last_obs for t in found] == [0, 1, 2, 3, 10, 11]
    assert [t.act for t in found] == [1, 2, 3, 4, 1, 2]
    assert [t.obs for t in found] == [3, 4, 4, 4, 12, 12]
    sums = [1 + 0.9 * 2 + 0.81 * 4, 2 + 0.9 * 4 + 0.81 * 8, 4 + 0.9 * 8, 8, 16 + 0.9 * 32, 32]
    assert [t.rew for t in found] == pytest.approx(sums)
    assert [getattr(t, end) for t in found] == [False, True, True, True, False, False]
    batch = gather(memory, np.arange(6))
    assert batch.discount.tolist() == pytest.approx([0.9**3, 0.9**3, 0.9**2, 0.9, 0.9**2, 0.9])
    assert batch.discount.dtype == torch.float32


def test_an_endless_reward_after_the_end_does_not_spoil_the_sum():
    memory = filled(episode([1.0], end="terminated"), episode([np.inf], start=10))
    assert gather(memory, np.array([0])).rew.tolist() == [1.0]


def test_crc_debugging_finds_a_wrong_step_inside_a_return():
    memory = ReplayMemory(n_steps=3, gamma=GAMMA, crc_debug=True)
    steps = ActionBufferEnv(1, 0).take(100)
    wrong = next(step.sample for step in steps[50:] if not step.is_reset)
    memory.append(
        packed(steps, "w", lambda sample: sample._replace(rew=sample.rew + (sample is wrong)))
    )
    with pytest.raises(PipelineMismatchError, match="rew"):
        [memory[item] for item in range(len(memory))]


def test_a_batched_preprocessor_keeps_the_discount():
    def negative(last_obs, act, rew, obs, terminated, truncated):
        return last_obs, act, -rew, obs, terminated, truncated

    negative.batched = True
    memory = filled(episode([1.0] * 9), sample_preprocessor=negative)
    batch = memory.sample()
    assert len(batch.discount) == memory.batch_size
    assert batch.rew.max() < 0


def with_potentials(*potentials):
    """Samples of one episode, rewards 1, 2, 4, …"""
    samples = episode([2.0**k for k in range(len(potentials) - 1)])
    for sample, potential in zip(samples, potentials, strict=True):
        sample.info["potential"] = np.float32(potential)
    return samples


def shaped_reward(potentials, steps, rewards, is_over):
    """r + w (gamma phi' - phi) step by step, phi' 0 after the last one where it is over; w is
    0.5.
    """
    total = 0.0
    for k in range(steps):
        after = 0.0 if is_over and k == steps - 1 else potentials[k + 1]
        total += GAMMA**k * (rewards[k] + 0.5 * (GAMMA * after - potentials[k]))
    return total


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_potentials_of_both_states_shape_the_reward(n_steps, end):
    potentials, rewards = [3.0, -1.0, 2.0, 7.0, 5.0, 4.0], [2.0**k for k in range(5)]
    samples = with_potentials(*potentials)
    samples[-1] = samples[-1]._replace(**{end: True})
    memory = filled(samples, n_steps=n_steps, shaping=0.5)
    batch = gather(memory, np.arange(5))
    for k, transition in enumerate(transitions(memory)):
        steps = min(n_steps, 5 - k)
        is_over = end == "terminated" and k + steps == 5
        expected = shaped_reward(potentials[k:], steps, rewards[k:], is_over)
        assert batch.rew[k].item() == pytest.approx(expected, rel=1e-6)
        assert transition.rew == sum(GAMMA**i * rewards[k + i] for i in range(steps))
    assert batch.columns["potential"].tolist() == potentials[1:]
    assert (batch.discount is None) is (n_steps == 1)


def test_gamma_and_the_weight_of_potentials_change_without_a_refill():
    samples = with_potentials(*range(40))
    memory = filled(samples, shaping=0.0, batch_size=16)
    other = filled(samples, shaping=2.0, gamma=0.5, batch_size=16)
    for _ in range(3):
        memory.sample()
    memory.tune(gamma=0.5, shaping=2.0)
    memory.seed(1)
    other.seed(1)
    batch, expected = memory.sample(), other.sample()
    assert torch.equal(batch.rew, expected.rew)
    assert torch.equal(batch.discount, expected.discount)
    for wrong in ({"gamma": 1.5}, {"shaping": np.inf}, {"n_steps": 2}):
        with pytest.raises(ConfigError):
            memory.tune(**wrong)
    with pytest.raises(
        ConfigError, match=r"shaping is 1.0; expected none: the memory has kept no potentials"
    ):
        ReplayMemory().tune(shaping=1.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_steps": 0}, "n_steps is"),
        ({"n_steps": 3}, "there is no gamma"),
        ({"gamma": 1.5}, "gamma is"),
        ({"shaping": 1.0}, "there is no gamma"),
        ({"gamma": 0.9, "shaping": math.nan}, "shaping is nan; expected a finite number"),
    ],
)
def test_steps_gamma_and_shaping_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        ReplayMemory(**wrong)


def test_a_batch_unpacks_as_six_and_what_is_beside_them_is_kept_and_mapped_with_them():
    batch = Batch(*map(torch.tensor, ([1], [2], [3], [4], [5], [6])), time_left=torch.tensor([7]))
    batch.columns = {"greedy": torch.tensor([8])}
    assert [int(item) for item in batch] == [1, 2, 3, 4, 5, 6]
    changed = batch._replace(obs=7)
    assert type(changed) is Batch
    assert (changed.obs, changed.time_left, changed.discount) == (7, batch.time_left, None)
    joined = batch.map(lambda *parts: torch.cat(parts), batch)
    assert joined.rew.tolist() == [3, 3]
    assert joined.time_left.tolist() == [7, 7]
    assert joined.columns["greedy"].tolist() == [8, 8]
    assert (joined.discount, joined.next_time_left) == (None, None)


@pytest.mark.parametrize("end", ["terminated", "truncated", None])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("memory_size", [7, 40])
def test_the_steps_to_the_end_are_counted_where_there_is_one(end, size, memory_size):
    samples = [
        *episode([1.0] * 9, end="terminated"),
        *episode([1.0] * 5, start=20, end=end),
        *episode([1.0], start=40),
    ]
    memory = ReplayMemory(memory_size=memory_size, columns=("steps_to_end",), batch_size=4)
    for start in range(0, len(samples), size):
        memory.append(Buffer(samples[start : start + size], "w"))
        memory.append(Buffer([samples[0]], "other"))
    steps_to_end = {k: 10 - k for k in range(1, 10)}
    if end == "terminated":
        steps_to_end |= {20 + k: 6 - k for k in range(1, 6)}
    for transition in transitions(memory):
        assert transition.info["steps_to_end"] == steps_to_end.get(int(transition.obs), 2**31 - 1)
    assert memory.sample().columns["steps_to_end"].dtype == torch.int32
