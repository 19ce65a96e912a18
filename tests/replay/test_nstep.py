import math

import numpy as np
import pytest
import torch
from kit.memories import gather

from tmrl_like.errors import ConfigError, PipelineMismatchError
from tmrl_like.replay import ReplayMemory
from tmrl_like.testing.memories import ActionBufferEnv, cut, packed
from tmrl_like.types import Buffer, Info, Sample

GAMMA = 0.9


def episode(rewards, start=0.0, end=None, potentials=None):
    """Return samples whose observations count up from `start`. `end`: the flag set in the last
    one.
    """
    samples = []
    for k, rew in enumerate((0.0, *rewards)):
        info = Info(is_reset=k == 0)
        if potentials is not None:
            info["potential"] = np.float32(potentials[k])
        samples.append(Sample(k, np.float32(start + k), rew, False, False, info))
    if end:
        samples[-1] = samples[-1]._replace(**{end: True})
    return samples


def filled(*episodes, **options):
    memory = ReplayMemory(**{"n_steps": 3, "gamma": GAMMA, **options})
    memory.append(Buffer([sample for samples in episodes for sample in samples], "w"))
    return memory


def test_an_endless_reward_after_the_end_does_not_spoil_the_sum():
    memory = filled(episode([1.0], end="terminated"), episode([np.inf], start=10))
    assert gather(memory, [0]).rew.tolist() == [1.0]


def test_crc_debugging_finds_a_wrong_step_inside_a_return():
    memory = ReplayMemory(n_steps=3, gamma=GAMMA, crc_debug=True)
    steps = ActionBufferEnv(1, 0).take(100)
    wrong = next(step.sample.obs for step in steps[50:] if not step.is_reset)
    memory.append(
        packed(steps, "w", lambda act, obs, rew, *others: (act, obs, rew + (obs is wrong), *others))
    )
    with pytest.raises(PipelineMismatchError, match="rew"):
        [memory[item] for item in range(len(memory))]


def test_crc_debugging_adds_rewards_as_batches_do_where_sum_is_more_exact(monkeypatch):
    monkeypatch.setattr("tmrl_like.replay.transitions.sum", math.fsum, raising=False)
    memory = ReplayMemory(n_steps=3, gamma=GAMMA, crc_debug=True)
    memory.append(packed(ActionBufferEnv(1, 0).take(100)))
    for item in range(len(memory)):
        memory[item]


def test_gamma_and_the_weight_of_potentials_change_without_a_refill():
    samples = episode([1.0] * 40, potentials=range(41))
    memory, other = filled(samples, shaping=0.0), filled(samples, shaping=2.0, gamma=0.5)
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
    with pytest.raises(ConfigError, match=r"shaping is 1.0; .* the memory has kept no potentials"):
        ReplayMemory().tune(shaping=1.0)


@pytest.mark.parametrize("end", ["terminated", "truncated", None])
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("memory_size", [7, 40])
def test_the_steps_to_the_end_are_counted_where_there_is_one(end, size, memory_size):
    samples = episode([1.0] * 9, end="terminated") + episode([1.0] * 5, start=20, end=end)
    samples += episode([1.0], start=40)
    memory = ReplayMemory(memory_size=memory_size, columns=("steps_to_end",), batch_size=4)
    for part in cut(samples, (size,)):
        memory.append(Buffer(part, "w"))
        memory.append(Buffer([samples[0]], "other"))
    steps_to_end = {k: 10 - k for k in range(1, 10)}
    if end == "terminated":
        steps_to_end |= {20 + k: 6 - k for k in range(1, 6)}
    for transition in map(memory.get_transition, range(len(memory))):
        assert transition.info["steps_to_end"] == steps_to_end.get(int(transition.obs), 2**31 - 1)
    assert memory.sample().columns["steps_to_end"].dtype == torch.int32
