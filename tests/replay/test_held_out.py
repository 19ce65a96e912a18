"""Episodes that training never draws from."""

from functools import partial

import numpy as np
import pytest
from kit.memories import arriving, gather

from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory, MiniRaces, ReplayMemory, WithDemonstrations
from tmrl_like.replay.data_sets import read_data_set, write_data_set
from tmrl_like.testing.memories import ActionBufferEnv, cut, packed
from tmrl_like.types import Buffer

HISTORY = {"act_buf_len": 2, "frame_stack": {1: 3}}


def of_workers(count=3, steps=400):
    """(stream, packet) of workers that take turns."""
    packets = arriving(count, (7, 30), 1, steps, act_buf_len=2, frame_stack=3)
    return [(f"w{number}", steps) for number, steps in packets]


def filled(packets, **arguments):
    memory = ReplayMemory(**HISTORY | {"held_out": 0.25, "batch_size": 32, **arguments})
    for stream, steps in packets:
        memory.append(packed(steps, stream, lambda sample: DropHistory(2, {1: 3})(*sample)))
    return memory


def begun_in(batch):
    """(worker, step) of the observations that the transitions of a batch begin with."""
    return set() if batch is None else set(map(tuple, batch.obs[0].tolist()))


def trained_and_held_out(memory):
    """(worker, step) of the observations that training draws transitions from, and of those that
    are held out.
    """
    memory.batch_size = 20_000  # none is left out
    held_out = memory.sample_held_out()
    memory.batch_size = 32
    return begun_in(gather(memory, range(len(memory)))), begun_in(held_out)


@pytest.mark.parametrize("share", [0.05, 0.25, 0.5])
def test_which_episodes_are_held_out_is_a_matter_of_their_numbers(share):
    packets = of_workers()
    trained, held_out = trained_and_held_out(filled(packets, held_out=share))
    whole, _ = trained_and_held_out(filled(packets, held_out=0.0))
    assert trained | held_out == whole
    for _, steps in packets:
        for step in steps:
            identity = tuple(step.sample.obs[0].tolist())
            n = step.episode
            is_held_out = np.floor((n + 1) * share + 0.5) > np.floor(n * share + 0.5)
            assert identity not in (trained if is_held_out else held_out)
    if share == 0.05:
        numbers = {
            step.episode
            for _, steps in packets
            for step in steps
            if tuple(step.sample.obs[0]) in held_out
        }
        assert numbers == {9, 29, 49}


@pytest.mark.parametrize("memory_size", [60, 333])
def test_a_ring_that_forgets_and_a_log_that_has_lost_its_beginning_change_nothing(memory_size):
    packets = of_workers()
    first, first_held_out = trained_and_held_out(filled(packets))
    memory = filled(packets, memory_size=memory_size, n_steps=3, gamma=0.9)
    for later in (memory, filled(packets[len(packets) // 3 :])):
        trained, held_out = trained_and_held_out(later)
        assert trained <= first
        assert held_out <= first_held_out
        assert trained
        assert held_out


@pytest.mark.parametrize(
    "arguments", [{}, {"n_steps": 3, "gamma": 1.0, "mini_races": MiniRaces(steps=5)}]
)
def test_batches_of_both_kinds_are_drawn_beside_each_other(arguments):
    packets = of_workers()
    memory, other = filled(packets, **arguments), filled(packets, **arguments)
    trained, held_out = trained_and_held_out(memory)
    memory.seed(3)
    other.seed(3)
    for _ in range(5):
        batch, of_held_out = memory.sample(), memory.sample_held_out()
        assert begun_in(batch) <= trained
        assert begun_in(of_held_out) <= held_out
        assert (of_held_out.time_left is None) is ("mini_races" not in arguments)
        assert batch.next_obs[0].tolist() == other.sample().next_obs[0].tolist()
    assert len(memory) == len(trained)
    memory.seed(4)
    other.seed(4)
    assert memory.sample_held_out().rew.tolist() == other.sample_held_out().rew.tolist()


def test_without_a_share_or_an_episode_there_is_no_batch():
    assert filled(of_workers(), held_out=0.0).sample_held_out() is None
    assert filled(of_workers(1, 12), held_out=0.05).sample_held_out() is None
    with pytest.raises(ConfigError, match="held_out is 1"):
        ReplayMemory(held_out=1.0)


def test_data_sets_have_numbers_whoever_wrote_them(tmp_path):
    steps = ActionBufferEnv(1, 2).take(300)
    buffers = [packed(part, "w", with_originals=False) for part in cut(steps, (50,))]
    for buffer in buffers:
        for sample in buffer.memory:
            sample.info.episode = 0
    write_data_set(tmp_path / "log", [Buffer(buffer.memory, "w") for buffer in buffers])
    found = [
        sample.info.episode
        for buffer in read_data_set(tmp_path / "log")
        for sample in buffer.memory
    ]
    assert found == [step.episode for step in steps]
    memory = ReplayMemory(held_out=0.25, dataset_path=tmp_path / "log")
    assert memory.sample_held_out() is not None


def test_of_demonstrations_nothing_is_held_out():
    memory = WithDemonstrations(partial(ReplayMemory, batch_size=12, **HISTORY), held_out=0.25)
    for one in (memory.own, memory.demonstrations):
        for stream, steps in of_workers():
            one.append(packed(steps, stream, lambda sample: DropHistory(2, {1: 3})(*sample)))
    assert memory.demonstrations.sample_held_out() is None
    memory.sample()
    assert len(memory.sample_held_out().rew) == 12
