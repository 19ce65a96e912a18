"""Held-out episodes, from which training never draws."""

from functools import cache, partial

import pytest
from kit.memories import arriving, gather, identity_of

from tmrl_like.replay import DropHistory, ReplayMemory, WithDemonstrations
from tmrl_like.replay.data_sets import read_data_set, write_data_set
from tmrl_like.testing.memories import ActionBufferEnv, cut, packed
from tmrl_like.types import Buffer, Info

HISTORY = {"act_buf_len": 2, "frame_stack": {1: 3}}


@cache
def packets_of_three():
    """Return (stream, packet) pairs of workers that take turns."""
    packets = arriving(3, (7, 30), 1, 400, act_buf_len=2, frame_stack=3)
    return [(f"w{number}", steps) for number, steps in packets]


def filled(packets, **arguments):
    memory = ReplayMemory(**HISTORY | {"held_out": 0.25, "batch_size": 32, **arguments})
    for stream, steps in packets:
        memory.append(packed(steps, stream, DropHistory(**HISTORY)))
    return memory


def begun_in(batch):
    """Return (worker, step) of the observations in which a batch's transitions begin."""
    return set() if batch is None else set(map(tuple, batch.obs[0].tolist()))


def trained_and_held_out(memory):
    """Return (worker, step) of the observations in which transitions begin, of those for training
    and of those held out.
    """
    memory.batch_size = 8_000  # large enough for all
    held_out = memory.sample_held_out()
    memory.batch_size = 32
    return begun_in(gather(memory, range(len(memory)))), begun_in(held_out)


@pytest.mark.parametrize(
    ("share", "numbers"), [(0.05, {9, 29, 49}), (0.25, {1, 5, 9, 13, 17}), (0.0, set())]
)
def test_which_episodes_are_held_out_is_a_matter_of_their_numbers(share, numbers):
    packets = packets_of_three()
    trained, held_out = trained_and_held_out(filled(packets, held_out=share))
    whole, _ = trained_and_held_out(filled(packets, held_out=0.0))
    assert trained | held_out == whole
    episode_of = {
        identity_of(step.sample.obs): step.episode for _, steps in packets for step in steps
    }
    found = {episode_of[identity] for identity in held_out}
    assert {number for number in found if number < 20 or share < 0.1} == numbers
    assert not found & {episode_of[identity] for identity in trained}


@pytest.mark.parametrize("memory_size", [60, 333])
def test_a_ring_that_forgets_and_a_log_that_has_lost_its_beginning_change_nothing(memory_size):
    packets = packets_of_three()
    first, first_held_out = trained_and_held_out(filled(packets))
    memory = filled(packets, memory_size=memory_size, n_steps=3, gamma=0.9)
    for later in (memory, filled(packets[len(packets) // 3 :])):
        trained, held_out = trained_and_held_out(later)
        assert trained <= first
        assert held_out <= first_held_out
        assert trained
        assert held_out


@pytest.mark.parametrize(
    "arguments",
    [{}, {"n_steps": 3, "gamma": 1.0, "mini_races": 0.25, "time_step_duration": 0.05}],
)
def test_batches_of_both_kinds_are_drawn_beside_each_other(arguments):
    packets = packets_of_three()
    memory, other = filled(packets, **arguments), filled(packets, **arguments)
    for one in (memory, other):
        one.seed(3)
    for _ in range(5):
        batch, of_held_out = memory.sample(), memory.sample_held_out()
        assert not begun_in(batch) & begun_in(of_held_out)
        assert (of_held_out.time_left is None) is ("mini_races" not in arguments)
        assert batch.next_obs[0].tolist() == other.sample().next_obs[0].tolist()


def test_data_sets_have_numbers_whoever_wrote_them(tmp_path):
    steps = ActionBufferEnv(1, 2).take(300)
    unnumbered = [step.sample._replace(info=Info(is_reset=step.is_reset)) for step in steps]
    write_data_set(tmp_path, [Buffer(part, "w") for part in cut(unnumbered, (50,))])
    found = [sample for buffer in read_data_set(tmp_path) for sample in buffer.memory]
    assert [sample.info.episode for sample in found] == [step.episode for step in steps]


@pytest.mark.parametrize(("inner", "outer"), [({}, {"held_out": 0.25}), ({"held_out": 0.25}, {})])
def test_of_demonstrations_nothing_is_held_out(inner, outer):
    memory = WithDemonstrations(partial(ReplayMemory, batch_size=12, **HISTORY, **inner), **outer)
    for one in (memory.own, memory.demonstrations):
        for stream, steps in packets_of_three():
            one.append(packed(steps, stream, DropHistory(**HISTORY)))
    assert memory.demonstrations.sample_held_out() is None
    assert len(memory.sample_held_out().rew) == 12
