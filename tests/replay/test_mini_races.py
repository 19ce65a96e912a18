"""Mini-races: transitions at a random moment of a race of T steps, by the definition, one by
one.
"""

import numpy as np
import pytest

from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory, MiniRaces, ReplayMemory
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import Buffer, Info, Sample

REWARDS = [1.0, -2.0, 4.0, 8.0, 0.5, 16.0, 32.0, -64.0, 128.0, 3.0]
LENGTH = 4


def chain(end):
    """One episode of ten steps; observation k is the number of the step."""
    samples = [Sample(0, np.int64(0), 0.0, False, False, Info({"potential": 0.25}, is_reset=True))]
    for k, rew in enumerate(REWARDS, start=1):
        flags = {"terminated": k == len(REWARDS) and end == "terminated"}
        flags["truncated"] = k == len(REWARDS) and end == "truncated"
        samples.append(Sample(0, np.int64(k), rew, **flags, info=Info({"potential": k + 0.25})))
    return samples


def reward_of_the_next(steps, start):
    return sum(REWARDS[start : start + steps])


def by_the_definition(steps, left, length, gamma, shaping, potential):
    """(reward, discount, next step, terminated, truncated, time left, next time left) of one
    transition.
    """
    taken = steps[: min(len(steps), left)]
    flags = taken[-1].sample
    over = bool(flags.terminated) or len(taken) == left
    rew = 0.0
    for k, step in enumerate(taken):
        rew += gamma**k * float(step.sample.rew)
    after = 0.0 if over else gamma ** len(taken) * float(flags.info["potential"])
    rew += shaping * (after - potential)
    discount = gamma ** len(taken)
    return (
        rew,
        discount,
        taken[-1],
        over,
        flags.truncated,
        left / length,
        (left - len(taken)) / length,
    )


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"obs_preprocessor": lambda obs: obs},
        {"crc_debug": True},
        {"batch_size": 5},  # several batches at once
    ],
    ids=["plain", "preprocessor", "crc", "at_once"],
)
def test_batches_are_those_of_the_definition_bit_for_bit(further):
    races = MiniRaces(steps=6, start_share=0.2, final_share=0.3, final_steps=2)
    memory = ReplayMemory(
        act_buf_len=2,
        frame_stack={1: 3},
        n_steps=4,
        gamma=0.9,
        greedy_only=True,
        shaping=0.5,
        mini_races=races,
        **{"batch_size": 64, **further},
    )
    steps = ActionBufferEnv(1, 2, frame_stack=3).take(400)
    memory.append(packed(steps, "w", lambda sample: DropHistory(2, {1: 3})(*sample)))
    memory.seed(3)
    batch, rng = memory.sample(), np.random.default_rng(3)
    items = rng.integers(0, len(memory), memory.batch_size)
    place = {
        tuple(step.original[0][0].tolist()): row
        for row, step in enumerate(steps)
        if not step.is_reset
    }
    rows = [
        place[tuple(memory.get_transition(item).last_obs[0].tolist())] for item in items.tolist()
    ]
    count = len(batch.rew)
    left = rng.integers(1, 7, count)
    chance, final = rng.random(count), rng.integers(1, 3, count)
    left = [
        6 if c < 0.2 else f if c >= 0.7 else u for c, f, u in zip(chance, final, left, strict=True)
    ]
    for k, (row, steps_left) in enumerate(zip(rows, left, strict=True)):
        following = [steps[row]]
        for after in steps[row + 1 : row + 4]:
            last = following[-1].sample
            if (
                after.is_reset
                or last.terminated
                or last.truncated
                or not after.sample.info["greedy"]
            ):
                break
            following.append(after)
        before = steps[row - 1].sample.info.get("potential", np.float32(0))
        expected = by_the_definition(following, steps_left, 6, 0.9, 0.5, float(before))
        rew, discount, last, *others = expected
        found = [
            batch.rew,
            batch.discount,
            batch.terminated,
            batch.truncated,
            batch.time_left,
            batch.next_time_left,
        ]
        assert [tensor[k].item() for tensor in found] == [
            float(np.float32(x)) for x in (rew, discount, *others)
        ]
        last_obs, next_obs = steps[row].original[0], last.sample.obs
        for tensor, leaf in zip((*batch.obs, *batch.next_obs), (*last_obs, *next_obs), strict=True):
            assert np.array_equal(tensor[k].numpy(), leaf)


def test_an_item_is_what_the_environment_produced_without_a_race():
    memory = ReplayMemory(n_steps=3, gamma=1.0, mini_races=MiniRaces(steps=1), shaping=0.5)
    memory.append(Buffer(chain("terminated"), "w"))
    assert [memory.get_transition(k).rew for k in range(10)] == [
        reward_of_the_next(3, k) for k in range(10)
    ]
    assert [memory.get_transition(k).terminated for k in range(10)] == [False] * 7 + [True] * 3


@pytest.mark.parametrize(
    ("races", "least", "shares"),
    [
        (MiniRaces(steps=4), 1, [0.25, 0.25, 0.25, 0.25]),
        (MiniRaces(steps=4, start_share=1.0), 4, [0, 0, 0, 1]),
        (MiniRaces(steps=4, final_share=1.0, final_steps=2), 1, [0.5, 0.5, 0, 0]),
        (MiniRaces(steps=4, final_share=1.0, final_steps=9), 1, [0.25, 0.25, 0.25, 0.25]),
        (
            MiniRaces(steps=4, start_share=0.4, final_share=0.4, final_steps=1),
            1,
            [0.45, 0.05, 0.05, 0.45],
        ),
    ],
)
def test_how_often_each_moment_of_a_race_is_drawn(races, least, shares):
    left = races.draw(np.random.default_rng(0), 40_000, 4)
    assert (left.min(), left.max() <= 4) == (least, True)
    assert np.bincount(left, minlength=5)[1:] / 40_000 == pytest.approx(shares, abs=0.01)


def test_how_many_steps_a_race_has():
    assert MiniRaces(seconds=7.0).length(0.06) == 117
    assert MiniRaces(seconds=0.01).length(0.06) == 1
    assert MiniRaces(seconds=7.0, steps=3).length(None) == 3
    with pytest.raises(ConfigError, match="mini-races of 7 s need the environment's time-step"):
        ReplayMemory(gamma=1.0, mini_races=MiniRaces())
    for wrong in (
        {"steps": 0},
        {"seconds": 0.0},
        {"start_share": 1.1},
        {"start_share": 0.6, "final_share": 0.6},
    ):
        with pytest.raises(ConfigError):
            MiniRaces(**wrong)
    with pytest.raises(ConfigError, match="mini-races the memory needs the agent's gamma"):
        ReplayMemory(mini_races=MiniRaces(steps=3))
