"""Mini-races (transitions at a random moment of a race of T steps), compared with their definition
one by one.
"""

import numpy as np
import pytest
from kit.memories import identity_of, steps_of_return

from tmrl_like.replay import DropHistory, ReplayMemory, ReplayOptions
from tmrl_like.testing.memories import ActionBufferEnv, packed

STEPS, GAMMA, SHAPING = 6, 0.9, 0.5


def by_the_definition(steps, left, potential):
    """Return the numbers of a transition by their names in a batch; `left` None: no race."""
    k = len(steps)
    last = steps[-1].sample
    over = bool(last.terminated) or k == left
    rew = sum(GAMMA**i * float(step.sample.rew) for i, step in enumerate(steps))
    after = 0.0 if over else GAMMA**k * float(last.info["potential"])
    numbers = {
        "rew": rew + SHAPING * (after - potential),
        "discount": GAMMA**k,
        "terminated": over,
        "truncated": last.truncated,
    }
    if left is not None:
        numbers |= {"time_left": left / STEPS, "next_time_left": (left - k) / STEPS}
    return numbers


RACES = {"mini_races": 0.3, "time_step_duration": 0.3 / STEPS}


@pytest.mark.parametrize(
    ("n_steps", "options"),
    [
        (4, {"batch_size": 64, **RACES}),
        (4, {"obs_preprocessor": lambda obs: obs, **RACES}),
        (4, {"crc_debug": True, **RACES}),
        (4, {}),
        (1, {}),
    ],
    ids=["races", "races, preprocessor", "races, crc", "no races", "one step"],
)
def test_batches_are_those_of_the_definition_bit_for_bit(n_steps, options):
    steps = ActionBufferEnv(1, 2, frame_stack=3).take(400)
    history = {"act_buf_len": 2, "frame_stack": {1: 3}}
    returns = {"n_steps": n_steps, "gamma": GAMMA, "greedy_only": True, "shaping": SHAPING}
    memory = ReplayMemory(**history, **returns, **options)
    memory.append(packed(steps, "w", DropHistory(**history)))
    memory.seed(3)
    batch, rng = memory.sample(), np.random.default_rng(3)
    items = rng.integers(0, len(memory), memory.batch_size)
    draws = rng.integers(1, STEPS + 1, items.shape).tolist()
    row_of = {identity_of(step.sample.obs): row for row, step in enumerate(steps)}
    for k, (item, left) in enumerate(zip(items.tolist(), draws, strict=True)):
        before = row_of[identity_of(memory.get_transition(item).last_obs)]
        left = left if "mini_races" in options else None
        taken = steps_of_return(steps, before + 1, min(n_steps, left or n_steps))
        potential = float(steps[before].sample.info.get("potential", 0.0))
        for name, number in by_the_definition(taken, left, potential).items():
            tensor = getattr(batch, name)
            assert tensor is not None or (n_steps, name) == (1, "discount")
            assert tensor is None or tensor[k].item() == float(np.float32(number)), name
        observations = (*steps[before].sample.obs, *taken[-1].sample.obs)
        for tensor, leaf in zip((*batch.obs, *batch.next_obs), observations, strict=True):
            assert np.array_equal(tensor[k].numpy(), leaf)


def test_how_many_steps_a_race_has():
    for seconds, steps in ((7.0, 117), (0.01, 1)):
        options = ReplayOptions(mini_races=seconds, time_step_duration=0.06, gamma=1.0)
        assert options.race_steps == steps
