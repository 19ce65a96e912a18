"""What factories take, and what a memory's knows from others."""

from functools import partial
from typing import Any, ClassVar

import pytest

from tmrl_like.base.factories import MISSING, argument_of, completed, fitted, known_from_env
from tmrl_like.envs.real_time import ClockedGym
from tmrl_like.replay import ReplayMemory, WithDemonstrations, compressor_of


class Game:
    def __init__(self, size: int, frames: int = 4) -> None: ...


class Env:
    frame_stacks: ClassVar[dict[int, str | int]] = {0: "game.frames", 2: 1}

    def __init__(self, game: Any = Game, act_buf_len: int = 2) -> None: ...


class Counted:
    time_step_unit: ClassVar[tuple[str, float]] = ("ticks", 0.25)

    def __init__(self, ticks: int = 2) -> None: ...


class CountedByThree(Counted):
    def __init__(self) -> None:
        super().__init__(3)


class Gym:
    def __init__(self, id: str = "", gym_kwargs: dict[str, Any] | None = None) -> None: ...


class Agent:
    def __init__(self, gamma: float = 0.9) -> None: ...


def test_an_argument_is_what_was_given_or_the_default() -> None:
    make = partial(Env, partial(Game, frames=3))
    assert (argument_of(make, "game.frames"), argument_of(Env, "game.frames")) == (3, 4)
    assert argument_of(Env, "act_buf_len") == 2
    assert argument_of(make, "game.size") is argument_of(Env, "nothing") is MISSING


def test_a_factory_is_given_what_it_takes_and_has_not() -> None:
    assert completed(Game, size=1, gamma=3).keywords == {"size": 1}
    assert completed(partial(Game, 5), size=1).keywords == {}
    assert completed(Game, size=MISSING) is Game


RTGYM = {"interface": Any, "act_buf_len": 3}
RTGYM_SAYS = {"act_buf_len": 3, "reset_act_buf": True}


@pytest.mark.parametrize(
    ("env_cls", "known"),
    [
        (Env, {"act_buf_len": 2, "frame_stack": {0: 4}}),
        (partial(Env, partial(Game, frames=1), act_buf_len=0), {"act_buf_len": 0, "frame_stack": 0}),
        (partial(ClockedGym, RTGYM), RTGYM_SAYS),
        (partial(ClockedGym, RTGYM | {"time_step_duration": 0.1}), RTGYM_SAYS | {"time_step_duration": 0.1}),
        (partial(ClockedGym, RTGYM | {"inputs": "keys"}), RTGYM_SAYS | {"inputs": "keys"}),
        (partial(Counted, ticks=3), {"time_step_duration": 0.75}),
        (CountedByThree, {}),
        (partial(ClockedGym, {"act_buf_len": 3}), {}),
        (
            partial(Gym, gym_kwargs={"config": RTGYM}),
            RTGYM_SAYS,
        ),
        (
            partial(Gym, gym_kwargs={"config": RTGYM | {"act_in_obs": False}}),
            {"act_buf_len": 0, "reset_act_buf": True},
        ),
        (Gym, {}),
        (partial(Gym, gym_kwargs={"config": 3}), {}),
        (partial(Env, lambda: Game(1)), {"act_buf_len": 2, "frame_stack": 0}),
        (("a pair", "of spaces"), {}),
    ],
)
def test_an_environment_tells_its_action_buffer_and_its_stacks(env_cls: Any, known: dict[str, Any]) -> None:
    assert known_from_env(env_cls) == known


def test_a_memory_is_fitted_to_environment_and_agent_and_so_is_the_one_in_it() -> None:
    known = {"act_buf_len": 2, "frame_stack": {0: 4}, "gamma": 0.5}
    agent = partial(Agent, gamma=0.5)
    assert fitted(ReplayMemory, Env, agent).keywords == known
    assert fitted(partial(ReplayMemory, gamma=0.9, frame_stack=0), Env, agent).keywords["gamma"] == 0.9
    both = fitted(partial(WithDemonstrations, memory=ReplayMemory), Env, agent)
    assert both.keywords["memory"].keywords == known
    assert compressor_of(both) == compressor_of(fitted(ReplayMemory, Env))
