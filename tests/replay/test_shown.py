"""Showing a data set: rebuilt observations, episode by episode."""

from functools import partial

import numpy as np
import pytest
from kit.boxes import box
from kit.memories import arriving, driven_by, identity_of

from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory, ReplayMemory, WithDemonstrations
from tmrl_like.replay.crc import first_difference
from tmrl_like.replay.shown import shown_steps
from tmrl_like.testing.memories import ActionBufferEnv, packed
from tmrl_like.types import ActionSource

MEMORY = partial(ReplayMemory, act_buf_len=4, held_out=0.5)
STEPS = ActionBufferEnv(1).take(60)


def shown(buffers, memory=MEMORY):
    return shown_steps(buffers, memory, box(1.0, 1), box(1.0, 1))


def begun(steps):
    """Return the numbers of the observations in which steps began."""
    return {identity_of(step.last_obs) for step in steps if not step.is_reset}


def test_each_step_is_rebuilt_with_its_episode_whatever_is_between_packets_and_streams():
    packets = list(arriving(2, (7, 30), seed=1))
    found = shown([packed(steps, f"w{worker}", DropHistory(4)) for worker, steps in packets])
    produced = {
        identity_of(step.last_obs): (worker, step)
        for worker, steps in packets
        for step in steps
        if not step.is_reset
    }
    assert len(found) == len(produced)
    episodes = set()
    for one in found:
        worker, step = produced[identity_of(one.obs)]
        assert first_difference((one.obs, one.act), (step.last_obs, step.sample.act), "") is None
        episodes.add((one.episode, worker, step.episode))
    assert len(episodes) == len({number for number, _, _ in episodes})
    assert len(episodes) == len({(worker, episode) for _, worker, episode in episodes})


TAKEN = {ActionSource.HUMAN: (24, 30)}
# none of its data sets exists
OURS = partial(
    WithDemonstrations, partial(MEMORY, dataset_path="nowhere"), demonstrations_path="nowhere"
)


class Ours(WithDemonstrations):
    def __init__(self, **options):
        super().__init__(MEMORY, takeovers=False, **options)


@pytest.mark.parametrize(
    ("by_whom", "memory", "steps"),
    [
        (TAKEN, MEMORY, STEPS[24:30]),
        (TAKEN, OURS, STEPS[24:30]),
        (TAKEN, Ours, STEPS[24:30]),
        ({ActionSource.EXPERT: (0, 60)}, MEMORY, STEPS),
    ],
    ids=["a takeover", "ours", "one that chooses", "an expert"],
)
def test_demonstrations_are_shown_alone_where_there_are_any(by_whom, memory, steps):
    own = driven_by({}, ActionBufferEnv(2).take(60), stream="own")
    found = shown([*driven_by(by_whom, STEPS), *own], memory)
    assert {identity_of(one.obs) for one in found} == begun(steps)


@pytest.mark.parametrize(
    ("preprocessor", "parts", "raw_parts"),
    [
        (None, 7, 7),
        (lambda obs: (obs[0] / 2, *obs[1:]), 7, 6),
        (lambda obs: obs[:3], 3, 0),
        (lambda obs: np.concatenate((obs[0], *obs[3:])), 10, 0),
    ],
    ids=["none", "the actions stay", "they are dropped", "one vector"],
)
def test_a_step_is_what_the_actor_sees_and_says_how_many_last_parts_are_the_environments(
    preprocessor, parts, raw_parts
):
    found = shown(driven_by({}, STEPS), partial(MEMORY, obs_preprocessor=preprocessor))
    assert {(len(one.obs), one.raw_parts) for one in found} == {(parts, raw_parts)}


def test_no_step_is_an_error():
    with pytest.raises(ConfigError, match="shows no step"):
        shown([])
