"""The arguments of factories, and those that a memory's factory gets from other parts."""

from functools import partial
from typing import Any

import pytest

from tmrl_like.base.factories import (
    MISSING,
    Elsewhere,
    argument_of,
    completed,
    known_from_env,
)
from tmrl_like.envs.desktop.desktop_env import DesktopGameEnv, DesktopGameInterface
from tmrl_like.envs.doom.doom_env import TIC_S, VizDoomEnv
from tmrl_like.envs.drone import DroneEnv
from tmrl_like.envs.generic import GenericGymEnv
from tmrl_like.envs.real_time import ClockedGym
from tmrl_like.errors import ConfigError


class Game:
    def __init__(self, size, frames=4): ...


class Env:
    def __init__(self, game=Game, act_buf_len=2): ...

    @staticmethod
    def memory_arguments(arguments):
        stack = {0: argument_of(arguments["game"], "frames")}
        return {"act_buf_len": arguments["act_buf_len"], "frame_stack": stack}


class Silent:
    def __init__(self, act_buf_len=2, time_step_duration=0.1): ...


def rtgym(**more):
    return partial(GenericGymEnv, "real-time-gym-ts-v1", {"config": RTGYM | more})


def test_an_argument_is_what_was_given_or_the_default():
    make = partial(Env, partial(Game, frames=3))
    assert argument_of(argument_of(make, "game"), "frames") == 3
    assert (argument_of(Game, "frames"), argument_of(Env, "act_buf_len")) == (4, 2)
    assert argument_of(Game, "size") is argument_of(Env, "nothing") is MISSING


def test_a_factory_is_given_what_it_takes_and_has_not():
    assert completed(Game, size=1, gamma=3).keywords == {"size": 1}
    assert completed(partial(Game, 5), size=1).keywords == {}
    assert completed(Game, size=MISSING) is Game


RTGYM = {"interface": Any, "act_buf_len": 3}
RTGYM_SAYS = {"act_buf_len": 3, "reset_act_buf": True}


@pytest.mark.parametrize(
    ("env_cls", "known"),
    [
        (
            partial(Env, partial(Game, frames=3), act_buf_len=0),
            {"act_buf_len": 0, "frame_stack": {0: 3}},
        ),
        (Silent, {}),
        (
            partial(DroneEnv, 0.1),
            {"act_buf_len": 4, "reset_act_buf": False, "time_step_duration": 0.1},
        ),
        (VizDoomEnv, {"act_buf_len": 3, "frame_stack": {0: 4}, "time_step_duration": 4 * TIC_S}),
        (
            partial(DesktopGameEnv, partial(DesktopGameInterface, frames=2)),
            {"act_buf_len": 2, "time_step_duration": 0.05, "inputs": None, "frame_stack": {0: 2}},
        ),
        (partial(ClockedGym, RTGYM), RTGYM_SAYS),
        (rtgym(), RTGYM_SAYS),
        (rtgym(act_in_obs=False), {"act_buf_len": 0, "reset_act_buf": True}),
        (GenericGymEnv, {}),
        (Elsewhere, dict.fromkeys(("act_buf_len", "reset_act_buf", "frame_stack"), Elsewhere)),
        (("a pair", "of spaces"), {}),
    ],
)
def test_an_environments_class_says_what_a_memory_must_know(env_cls, known):
    assert known_from_env(env_cls) == known


def test_what_an_environments_class_needs_to_say_it_and_was_not_given_is_named():
    class OwnGameEnv(DesktopGameEnv):
        def __init__(self, **options):
            super().__init__(**options)

    needed = "^OwnGameEnv.memory_arguments needs the argument interface: give it, or override"
    with pytest.raises(ConfigError, match=needed):
        known_from_env(OwnGameEnv)
