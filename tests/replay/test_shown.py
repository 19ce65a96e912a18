"""What a data set shows: observations as they were rebuilt, episode by episode."""

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
    """Observations count up from `first`; the action after observation k is -k."""
    timing = [StepTiming(0.0, 0.0, 0.0, 0, source) for source in (sources[0], *sources)]
    buffer, samples = [number(0.0)] * 2, []
    compress = DropHistory(2)
    for _ in range(2):
        info = Info(is_reset=True, timing=timing[0])
        samples.append(compress(number(0.0), (number(first), *buffer), 0.0, False, False, info))
    for k in range(len(sources)):
        act = number(-(first + k))
        buffer = [buffer[1], act]
        obs = (number(first + k + 1), *buffer)
        samples.append(
            compress(act, obs, 0.0, k == len(sources) - 1, False, Info(timing=timing[k + 1]))
        )
    return samples


def found(buffers, memory_cls=partial(ReplayMemory, act_buf_len=2, held_out=0.5)):  # noqa: B008
    steps = shown_steps(buffers, memory_cls, OBS, ACT)
    return [(step.episode, step.obs[0].item(), step.act.item()) for step in steps], steps


def test_each_step_is_rebuilt_with_its_episode_whatever_is_between_packets_and_streams():
    policy = [ActionSource.POLICY] * 4
    one, two, three = episode(10, policy), episode(20, policy), episode(30, policy)
    mixed = [
        Buffer(one[:3], "a"),
        Buffer(three[:2], "b"),
        Buffer(one[3:] + two, "a"),
        Buffer(three[2:], "b"),
    ]
    rows, steps = found(mixed)
    assert sorted(row[1:] for row in rows) == [
        (k, -k) for first in (10, 20, 30) for k in range(first, first + 4)
    ]
    assert len({row[0] for row in rows}) == 3
    assert len({(row[0], row[1] // 10) for row in rows}) == 3
    last = next(step for step in steps if step.obs[0].item() == 13)
    assert [part.item() for part in last.obs] == [13, -11, -12]


def test_demonstrations_are_shown_alone_where_there_are_any():
    own, person, expert = ActionSource.POLICY, ActionSource.HUMAN, ActionSource.EXPERT
    taken = episode(10, [own, own, person, person, person, own])
    rows, _ = found([Buffer(taken + episode(20, [own] * 3), "a")])
    assert [row[1] for row in rows] == [12, 13, 14]
    rows, _ = found([Buffer(episode(20, [own] * 3) + episode(30, [expert] * 3), "a")])
    assert [row[1] for row in rows] == [30, 31, 32]
    memory = partial(
        WithDemonstrations, partial(ReplayMemory, act_buf_len=2), demonstrations_path="nowhere"
    )
    rows, _ = found([Buffer(taken, "a")], memory)
    assert [row[1] for row in rows] == [12, 13, 14]


def test_observations_are_those_that_the_actor_sees():
    memory = partial(ReplayMemory, act_buf_len=2, obs_preprocessor=lambda obs: 2 * obs[0])
    steps = shown_steps([Buffer(episode(10, [ActionSource.POLICY] * 3), "a")], memory, OBS, ACT)
    assert [step.obs.item() for step in steps] == [20, 22, 24]


def test_no_step_is_an_error():
    with pytest.raises(ConfigError, match="shows no step"):
        found([])
