import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.memories import arriving, assert_a_batch_is_what_the_items_are, gather

from tmrl_like.errors import ConfigError, PipelineMismatchError
from tmrl_like.replay import DropHistory, ReplayMemory
from tmrl_like.replay.crc import check_transition
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import Batch, Buffer, Info, Sample

GAMMA = 0.9


def episode(rewards, terminated=False, truncated=False, start=0.0):
    """Samples whose observations count up from `start`, the last one ending the episode as said."""
    samples = [Sample(0, np.float32(start), 0.0, False, False, Info(is_reset=True))]
    for k, rew in enumerate(rewards, start=1):
        is_last = k == len(rewards)
        samples.append(Sample(k, np.float32(start + k), rew, terminated and is_last, truncated and is_last, Info()))
    return samples


def three_steps(*episodes, **kwargs):
    memory = ReplayMemory(n_steps=3, gamma=GAMMA, **kwargs)
    memory.append(Buffer([sample for samples in episodes for sample in samples], "w"))
    return memory


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_return_ends_with_its_episode(end):
    memory = three_steps(episode([1.0, 2.0, 4.0, 8.0], **{end: True}), episode([16.0, 32.0], start=10))
    transitions = [memory.get_transition(k) for k in range(len(memory))]
    assert [t.last_obs for t in transitions] == [0, 1, 2, 3, 10, 11]
    assert [t.act for t in transitions] == [1, 2, 3, 4, 1, 2]
    assert [t.obs for t in transitions] == [3, 4, 4, 4, 12, 12]
    sums = [1 + 0.9 * 2 + 0.81 * 4, 2 + 0.9 * 4 + 0.81 * 8, 4 + 0.9 * 8, 8, 16 + 0.9 * 32, 32]
    assert [t.rew for t in transitions] == pytest.approx(sums)
    flags = [t.terminated if end == "terminated" else t.truncated for t in transitions]
    assert flags == [False, True, True, True, False, False]
    batch = gather(memory, np.arange(6))
    assert batch.discount.tolist() == pytest.approx([0.9**3, 0.9**3, 0.9**2, 0.9, 0.9**2, 0.9])
    assert batch.discount.dtype == torch.float32


def test_a_return_grows_as_the_episode_goes_on():
    memory = ReplayMemory(n_steps=3, gamma=0.5)
    found = []
    for sample in episode([1.0, 1.0, 1.0, 1.0]):
        memory.append(Buffer([sample], "w"))
        found.append(memory.get_transition(0).rew if len(memory) else None)
    assert found == [None, 1.0, 1.5, 1.75, 1.75]


def test_an_episode_that_is_cut_without_a_flag_ends_where_the_next_begins():
    memory = three_steps(episode([1.0, 1.0]), episode([5.0], start=10))
    assert [memory.get_transition(k).rew for k in range(3)] == [1.9, 1.0, 5.0]


def test_an_endless_reward_after_the_end_does_not_spoil_the_sum():
    memory = three_steps(episode([1.0], terminated=True), episode([np.inf], start=10))
    assert gather(memory, np.array([0])).rew.tolist() == [1.0]


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    memory_size=st.integers(1, 90),
    longest_episode=st.integers(1, 8),
    act_buf_len=st.integers(0, 3),
    frame_stack=st.integers(0, 4),
    reset_act_buf=st.booleans(),
    n_steps=st.integers(1, 6),
    greedy_only=st.booleans(),
    lost=st.sets(st.integers(0, 30), max_size=5),
    crc_debug=st.booleans(),
)
def test_any_returns_of_any_workers_in_any_ring_are_those_of_the_episodes(
    sizes,
    workers,
    memory_size,
    longest_episode,
    act_buf_len,
    frame_stack,
    reset_act_buf,
    n_steps,
    greedy_only,
    lost,
    crc_debug,
):
    memory = ReplayMemory(
        memory_size=memory_size,
        act_buf_len=act_buf_len,
        frame_stack={1: frame_stack} if frame_stack else 0,
        n_steps=n_steps,
        gamma=GAMMA,
        greedy_only=greedy_only,
        columns=("speed",),
        crc_debug=crc_debug,
    )
    compress = DropHistory(act_buf_len, memory.options.frame_stack)
    env = {
        "act_buf_len": act_buf_len,
        "reset_act_buf": reset_act_buf,
        "longest_episode": longest_episode,
        "frame_stack": frame_stack,
    }
    arrived = []
    breaks = [0] * workers
    for number, (worker, steps) in enumerate(arriving(workers, sizes, memory_size, **env)):
        if number in lost:
            breaks[worker] += 1
            continue
        stream = f"w{worker}/{breaks[worker]}"
        memory.append(packed(steps, stream, lambda sample: compress(*sample)))
        arrived += [(stream, step) for step in steps]
    expected = n_step_returns(arrived, n_steps, greedy_only)
    batch = assert_a_batch_is_what_the_items_are(memory)
    for item in range(len(memory)):
        transition = memory.get_transition(item)
        steps = expected[tuple(transition.last_obs[0].tolist())]
        last_obs, act, rew = steps[0].original[:3]
        if n_steps > 1:
            rew = 0.0
            for k, step in enumerate(steps):
                rew += GAMMA**k * float(step.sample.rew)
            assert batch.discount[item] == np.float32(GAMMA ** len(steps))
        check_transition((last_obs, act, rew, *steps[-1].original[3:]), transition)
        assert transition.info["speed"] == batch.columns["speed"][item] == steps[0].sample.info["speed"]
        memory[item]


def n_step_returns(arrived, n_steps, greedy_only=False):
    """By the identity of the first observation: the steps that an n-step return from there is made of."""
    expected = {}
    for worker in {worker for worker, _ in arrived}:
        steps = [step for number, step in arrived if number == worker]
        for i, step in enumerate(steps):
            taken = [step]
            for after in steps[i + 1 : i + n_steps]:
                if after.is_reset or taken[-1].sample.terminated or taken[-1].sample.truncated:
                    break
                if greedy_only and not after.sample.info["greedy"]:
                    break
                taken.append(after)
            if not step.is_reset:
                expected[tuple(step.original[0][0].tolist())] = taken
    return expected


def test_crc_debugging_finds_a_wrong_step_inside_a_return():
    memory = ReplayMemory(n_steps=3, gamma=GAMMA, crc_debug=True)
    steps = ActionBufferEnv(1, 0).take(100)
    wrong = next(step.sample for step in steps[50:] if not step.is_reset)
    memory.append(packed(steps, "w", lambda sample: sample._replace(rew=sample.rew + (sample is wrong))))
    with pytest.raises(PipelineMismatchError, match="rew"):
        [memory[item] for item in range(len(memory))]


def test_a_batched_preprocessor_keeps_the_discount():
    def negative(last_obs, act, rew, obs, terminated, truncated):
        return last_obs, act, -rew, obs, terminated, truncated

    negative.batched = True
    memory = three_steps(episode([1.0] * 9), sample_preprocessor=negative)
    batch = memory.sample()
    assert type(batch) is Batch
    assert len(batch.discount) == memory.batch_size
    assert batch.rew.max() < 0


def greedy_or_not(*flags, potentials=None):
    """Samples of one episode, rewards 1, 2, 4, …, whose actions were greedy or not."""
    samples = episode([2.0**k for k in range(len(flags) - 1)])
    potentials = potentials or [0.0] * len(flags)
    for sample, flag, potential in zip(samples, flags, potentials, strict=True):
        sample.info.update(greedy=np.bool_(flag), potential=np.float32(potential))
    return samples


def test_a_return_ends_before_the_first_action_that_was_not_greedy_but_for_its_own():
    memory = three_steps(greedy_or_not(0, 0, 1, 1, 0, 1, 0, 0), greedy_only=True)
    assert [memory.get_transition(k).obs for k in range(7)] == [3, 3, 3, 5, 5, 6, 7]
    assert [memory.get_transition(k).rew for k in (3, 4)] == [8 + 0.9 * 16, 16]
    assert gather(memory, np.arange(7)).columns["greedy"].tolist() == [False, True, True, False, True, False, False]


def test_rows_that_another_worker_has_overwritten_are_left_alone():
    memory = ReplayMemory(memory_size=5, n_steps=4, gamma=GAMMA)
    samples = episode([1.0] * 9)
    for stream, part in (("a", samples[:3]), ("b", samples[:3]), ("a", samples[3:4])):
        memory.append(Buffer(part, stream))
    assert sorted(memory.get_transition(k).rew for k in range(len(memory))) == [1.0, 1.0, 1.9]


def shaped_reward(potentials, steps, rewards, is_over):
    """r + w (gamma phi' - phi) step by step, phi' 0 after the last one where it is over; w is 0.5."""
    total = 0.0
    for k in range(steps):
        after = 0.0 if is_over and k == steps - 1 else potentials[k + 1]
        total += GAMMA**k * (rewards[k] + 0.5 * (GAMMA * after - potentials[k]))
    return total


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_potentials_of_both_states_shape_the_reward(n_steps, end):
    potentials = [3.0, -1.0, 2.0, 7.0, 5.0, 4.0]
    samples = greedy_or_not(*[1] * 6, potentials=potentials)
    samples[-1] = samples[-1]._replace(**{end: True})
    memory = ReplayMemory(n_steps=n_steps, gamma=GAMMA, shaping=0.5)
    memory.append(Buffer(samples, "w"))
    rewards = [2.0**k for k in range(5)]
    batch = gather(memory, np.arange(5))
    for k in range(5):
        steps = min(n_steps, 5 - k)
        is_over = end == "terminated" and k + steps == 5
        expected = shaped_reward(potentials[k:], steps, rewards[k:], is_over)
        assert batch.rew[k].item() == pytest.approx(expected, rel=1e-6)
        assert memory.get_transition(k).rew == sum(GAMMA**i * rewards[k + i] for i in range(steps))
    assert batch.columns["potential"].tolist() == potentials[1:]
    assert (batch.discount is None) is (n_steps == 1)


def test_gamma_and_the_weight_of_potentials_change_without_a_refill():
    samples = greedy_or_not(*[1] * 40, potentials=list(range(40)))
    memory, other = (
        ReplayMemory(n_steps=3, gamma=gamma, shaping=shaping, batch_size=16)
        for gamma, shaping in ((0.9, 0.0), (0.5, 2.0))
    )
    for one in (memory, other):
        one.append(Buffer(samples, "w"))
        one.seed(1)
    for _ in range(3):
        memory.sample()
    memory.tune(gamma=0.5, shaping=2.0)
    memory.seed(1)
    batch, expected = memory.sample(), other.sample()
    assert torch.equal(batch.rew, expected.rew)
    assert torch.equal(batch.discount, expected.discount)
    for wrong in ({"gamma": 1.5}, {"shaping": np.inf}, {"n_steps": 2}):
        with pytest.raises(ConfigError):
            memory.tune(**wrong)
    with pytest.raises(ConfigError, match="shaping is nan; expected a finite number"):
        ReplayMemory(gamma=0.9, shaping=math.nan)
    with pytest.raises(ConfigError, match="kept no potentials"):
        ReplayMemory().tune(shaping=1.0)


@pytest.mark.parametrize("wrong", [{"n_steps": 0}, {"n_steps": 3}, {"gamma": 1.5}, {"shaping": 1.0}])
def test_steps_and_gamma_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=r"n_steps is|gamma is"):
        ReplayMemory(**wrong)


def test_a_batch_unpacks_as_six_and_keeps_what_is_beside_them():
    batch = Batch(1, 2, 3, 4, 5, 6, discount=0.9)
    obs, act, rew, next_obs, terminated, truncated = batch
    assert (obs, act, rew, next_obs, terminated, truncated) == (1, 2, 3, 4, 5, 6)
    changed = batch._replace(obs=7)
    assert (changed.obs, changed.discount, changed.time_left) == (7, 0.9, None)
    assert type(changed) is Batch
    assert Batch(1, 2, 3, 4, 5, 6).discount is None


def test_what_is_beside_the_six_is_mapped_with_them():
    batch = Batch(*map(torch.tensor, ([1], [2], [3], [4], [5], [6])), time_left=torch.tensor([7]))
    batch.columns = {"greedy": torch.tensor([8])}
    joined = batch.map(lambda *parts: torch.cat(parts), batch)
    assert joined.rew.tolist() == [3, 3]
    assert joined.time_left.tolist() == [7, 7]
    assert joined.columns["greedy"].tolist() == [8, 8]
    assert (joined.discount, joined.next_time_left) == (None, None)


@pytest.mark.parametrize("end", ["terminated", "truncated", None])
@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize("memory_size", [7, 40])
def test_the_steps_to_the_end_are_counted_where_there_is_one(end, size, memory_size):
    flags = {end: True} if end else {}
    samples = [*episode([1.0] * 9, terminated=True), *episode([1.0] * 5, start=20, **flags), *episode([1.0], start=40)]
    memory = ReplayMemory(memory_size=memory_size, columns=("steps_to_end", "speed"), batch_size=4)
    for sample in samples:
        sample.info["speed"] = 1.0
    for start in range(0, len(samples), size):
        memory.append(Buffer(samples[start : start + size], "w"))
        memory.append(Buffer([samples[0]], "other"))
    expected = {k: 10 - k for k in range(1, 10)} | {20 + k: 6 - k for k in range(1, 6)}
    for item in range(len(memory)):
        transition = memory.get_transition(item)
        steps = expected.get(int(transition.obs), 2**31 - 1)
        if end != "terminated" and transition.obs > 9:
            steps = 2**31 - 1
        assert transition.info["steps_to_end"] == steps
    assert memory.sample().columns["steps_to_end"].dtype == torch.int32
