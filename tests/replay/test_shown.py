"""Showing a data set: rebuilt observations, episode by episode."""

from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from tmrl_like.errors import ConfigError
from tmrl_like.replay import DropHistory, ReplayMemory, WithDemonstrations
from tmrl_like.replay.shown import shown_steps
from tmrl_like.types import ActionSource, Buffer, Info, StepTiming

ACT = spaces.Box(-9.0, 9.0, (1,))
OBS = spaces.Tuple((spaces.Box(0.0, 99.0, (1,)), ACT, ACT))


def number(value):
    return np.array([value], np.float32)


def episode(first, sources):
    """Return an episode whose observations count up from `first`; the action after observation k is
    -k.
    """
    compress, buffer = DropHistory(2), [number(0.0)] * 2

    def sample(act, seen, source, **flags):
        info = Info(timing=StepTiming(0.0, 0.0, 0.0, 0, source), is_reset="is_last" not in flags)
        obs = (number(seen), *buffer)
        return compress(act, obs, 0.0, flags.get("is_last", False), False, info)

    samples = [sample(number(0.0), first, sources[0]) for _ in range(2)]
    for k, source in enumerate(sources, start=first):
        buffer = [buffer[1], number(-k)]
        samples.append(sample(buffer[1], k + 1, source, is_last=k == first + len(sources) - 1))
    return samples


OWN, PERSON, EXPERT = ActionSource.POLICY, ActionSource.HUMAN, ActionSource.EXPERT


def found(buffers, memory_cls=partial(ReplayMemory, act_buf_len=2, held_out=0.5)):  # noqa: B008
    steps = shown_steps(buffers, memory_cls, OBS, ACT)
    return [(step.episode, step.obs[0].item(), step.act.item()) for step in steps], steps


def test_each_step_is_rebuilt_with_its_episode_whatever_is_between_packets_and_streams():
    one, two, three = (episode(first, [OWN] * 4) for first in (10, 20, 30))
    rows, steps = found(
        [
            Buffer(one[:3], "a"),
            Buffer(three[:2], "b"),
            Buffer(one[3:] + two, "a"),
            Buffer(three[2:], "b"),
        ]
    )
    assert sorted(row[1:] for row in rows) == [
        (k, -k) for first in (10, 20, 30) for k in range(first, first + 4)
    ]
    episodes = {row[0] for row in rows}
    assert len(episodes) == len({(row[0], row[1] // 10) for row in rows}) == 3
    last = next(step for step in steps if step.obs[0].item() == 13)
    assert [part.item() for part in last.obs] == [13, -11, -12]


def test_demonstrations_are_shown_alone_where_there_are_any():
    taken = episode(10, [OWN, OWN, PERSON, PERSON, PERSON, OWN])
    own = episode(20, [OWN] * 3)
    ours = partial(
        WithDemonstrations, partial(ReplayMemory, act_buf_len=2), demonstrations_path="nowhere"
    )
    for samples, shown, memory in (
        (taken + own, [12, 13, 14], ()),
        (own + episode(30, [EXPERT] * 3), [30, 31, 32], ()),
        (taken, [12, 13, 14], (ours,)),
    ):
        rows, _ = found([Buffer(samples, "a")], *memory)
        assert [row[1] for row in rows] == shown


def test_observations_are_those_that_the_actor_sees():
    memory = partial(ReplayMemory, act_buf_len=2, obs_preprocessor=lambda obs: 2 * obs[0])
    steps = shown_steps([Buffer(episode(10, [OWN] * 3), "a")], memory, OBS, ACT)
    assert [step.obs.item() for step in steps] == [20, 22, 24]


def test_neither_data_sets_nor_files_of_the_memory_are_used_however_it_is_given():
    inside = partial(ReplayMemory, act_buf_len=2, dataset_path="nowhere", held_out=0.99)
    of_disk = partial(ReplayMemory, act_buf_len=2, scratch_dir="/dev/null/full")
    for memory in (
        partial(WithDemonstrations, memory=inside),
        partial(WithDemonstrations, inside, 0.5, "nowhere"),
        of_disk,
    ):
        rows, _ = found([Buffer(episode(10, [OWN] * 3), "a")], memory)
        assert [row[1] for row in rows] == [10, 11, 12]


def test_no_step_is_an_error():
    with pytest.raises(ConfigError, match="shows no step"):
        found([])
