"""Mini-races (transitions at a random moment of a race of T steps), compared with their definition
one by one.
"""

import numpy as np
import pytest
from kit.memories import steps_of_return

from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory, MiniRaces, ReplayMemory
from tmrl_like.testing.memories import ActionBufferEnv, packed

STEPS, GAMMA, SHAPING = 6, 0.9, 0.5


def by_the_definition(steps, left, potential):
    """Return (reward, discount, terminated, truncated, time left, next time left) of a
    transition.
    """
    k = len(steps)
    flags = steps[-1].sample
    over = bool(flags.terminated) or k == left
    rew = sum(GAMMA**i * float(step.sample.rew) for i, step in enumerate(steps))
    after = 0.0 if over else GAMMA**k * float(flags.info["potential"])
    rew += SHAPING * (after - potential)
    return rew, GAMMA**k, over, flags.truncated, left / STEPS, (left - k) / STEPS


def filled(steps, **options):
    memory = ReplayMemory(
        act_buf_len=2, frame_stack={1: 3}, n_steps=4, gamma=GAMMA, greedy_only=True, **options
    )
    memory.append(packed(steps, "w", DropHistory(2, {1: 3})))
    return memory


@pytest.mark.parametrize(
    "further",
    [
        {"batch_size": 64},
        {"obs_preprocessor": lambda obs: obs},
        {"crc_debug": True},
    ],
    ids=["plain", "preprocessor", "crc"],
)
def test_batches_are_those_of_the_definition_bit_for_bit(further):
    races = MiniRaces(steps=STEPS)
    steps = ActionBufferEnv(1, 2, frame_stack=3).take(400)
    memory = filled(steps, shaping=SHAPING, mini_races=races, **further)
    memory.seed(3)
    batch, rng = memory.sample(), np.random.default_rng(3)
    items = rng.integers(0, len(memory), memory.batch_size)
    draws = rng.integers(1, STEPS + 1, items.shape).tolist()
    place = {
        tuple(step.original[0][0].tolist()): row
        for row, step in enumerate(steps)
        if not step.is_reset
    }
    for k, (item, left) in enumerate(zip(items.tolist(), draws, strict=True)):
        row = place[tuple(memory.get_transition(item).last_obs[0].tolist())]
        taken = steps_of_return(steps, row, min(4, left))
        before = steps[row - 1].sample.info.get("potential", 0.0)
        expected = by_the_definition(taken, left, float(before))
        found = (
            *(batch.rew, batch.discount, batch.terminated, batch.truncated),
            *(batch.time_left, batch.next_time_left),
        )
        assert [tensor[k].item() for tensor in found] == [float(np.float32(x)) for x in expected]
        observations = (*steps[row].original[0], *taken[-1].sample.obs)
        for tensor, leaf in zip((*batch.obs, *batch.next_obs), observations, strict=True):
            assert np.array_equal(tensor[k].numpy(), leaf)


def test_how_many_steps_a_race_has():
    assert MiniRaces(seconds=7.0).length(0.06) == 117
    assert MiniRaces(seconds=0.01).length(0.06) == 1
    assert MiniRaces(seconds=7.0, steps=3).length(None) == 3
    for wrong in ({"steps": 0}, {"seconds": 0.0}):
        with pytest.raises(ConfigError):
            MiniRaces(**wrong)
