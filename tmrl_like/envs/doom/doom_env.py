"""Doom, in real time: the game runs at 35 tics a second, whether or not the policy has decided.

VizDoom's engine runs in its asynchronous mode, as a process of its own. A step lasts several tics:
the buttons of an action are held until the next action, and the agent sees the newest frame. It
needs the extra `vizdoom`, but no display. The engine makes an empty folder `_vizdoom` where it is
started.

| | `vizdoom` |
|---|---|
| class | `tmrl_like.envs.doom.VizDoomEnv` |
| time-step | 114 ms |
| episode | 75 steps |
| reward | the scenario's, times `reward_scale` |
| ends | the player dies, or the scenario is over |

| observation of `vizdoom` | shape | dtype | range | unit |
|---|---|---|---|---|
| the last `frames` frames, grey, newest last | [4, 60, 80] | uint8 | 0 to 255 | |
| health, ammunition (`variables`) | [2] | float32 | 0 to 100, 50 | %, rounds |
| the last 3 actions | [] | int64 | 0 to 3 | |

| action of `vizdoom` | shape | dtype | range | unit |
|---|---|---|---|---|
| what is held down: nothing, step left, step right, fire | [] | int64 | 0 to 3 | |
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import gymnasium.spaces as spaces
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from tmrl_like.base.factories import said_to_memory
from tmrl_like.base.options import Positive, Reward, in_ranges
from tmrl_like.envs.real_time import RealTimeEnv, also_takes
from tmrl_like.envs.task import TaskInterface
from tmrl_like.envs.vision import Frame, History, Shrink
from tmrl_like.errors import ConfigError, MissingExtraError, expect

TIC_S = 1 / 35

Buttons = Sequence[str]
Picture = tuple[Frame, NDArray[np.float32]]  # what the game shows, and its variables
TURN_AND_SHOOT: tuple[Buttons, ...] = (
    (),
    ("TURN_LEFT",),
    ("TURN_RIGHT",),
    ("ATTACK",),
    ("TURN_LEFT", "ATTACK"),
    ("TURN_RIGHT", "ATTACK"),
)
HEALTH_AND_AMMO = {"HEALTH": 100.0, "AMMO2": 30.0}


class VizDoomInterface(TaskInterface[Picture]):
    """rtgym interface of a VizDoom scenario.

    Observation: the newest frames, uint8 [frames, height, width] ([frames, height, width, 3] in
    colour), newest last, and the game variables, float32 [variables]. Action: the number of an
    entry in the table of button combinations. Reward: the scenario's, scaled. The episode
    terminates when the player dies or the scenario is over.

    Attributes:
        game: the `vizdoom.DoomGame`.
    """

    @in_ranges
    def __init__(
        self,
        scenario: str = "defend_the_center",
        actions: Sequence[Buttons] = TURN_AND_SHOOT,
        variables: Mapping[str, float] = HEALTH_AND_AMMO,
        size: tuple[int, int] = (60, 80),
        grey: bool = True,
        frames: Positive = 4,
        reward_scale: Reward = 1.0,
    ) -> None:
        """Start the engine.

        Args:
            scenario: name of a scenario that comes with VizDoom, or the path of a `.cfg`.
            actions: buttons that each action holds, by VizDoom's names; the first entry is the
                default action.
            variables: the game variables in the observation, by VizDoom's names, each with its
                largest value.
            size: height and width of the frames, in pixels.
            grey: one value per pixel instead of three.
            frames: number of newest frames in the observation.
            reward_scale: factor of the scenario's reward.

        Raises:
            MissingExtraError: VizDoom is not installed.
            ConfigError: there is no such scenario, button or variable.
        """
        try:
            import vizdoom
        except ImportError as error:
            raise MissingExtraError(
                f"Doom needs VizDoom: pip install 'tmrl_like[vizdoom]' ({error})"
            ) from None
        expect(len(actions) > 0, "actions", actions, "a table of one or more")
        expect(
            all(most > 0 for most in variables.values()),
            "variables",
            variables,
            "each with a largest value above 0",
        )
        super().__init__()
        names = list(dict.fromkeys(button for held in actions for button in held))
        self._table = [[name in held for name in names] for held in actions]
        self._most = np.array(list(variables.values()), np.float32)
        self._shrink, self._history = Shrink(size, grey=grey), History(frames)
        self._newest: Picture
        self._rewarded, self._tics = 0.0, 0
        self._reward_scale = reward_scale
        self.game = vizdoom.DoomGame()
        self.game.load_config(str(_config_of(scenario, Path(vizdoom.scenarios_path))))
        self.game.set_available_buttons([_member(vizdoom.Button, name) for name in names])
        self.game.set_available_game_variables(
            [_member(vizdoom.GameVariable, name) for name in variables]
        )
        self.game.set_mode(vizdoom.Mode.ASYNC_PLAYER)
        self.game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        self.game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self.game.set_episode_timeout(0)  # the environment has ep_max_length
        # counted here: VizDoom misses tics that pass between two calls in this mode
        self._tic_reward = self.game.get_living_reward()
        self.game.set_living_reward(0.0)
        self.game.set_window_visible(False)
        self.game.set_doom_config_path(os.devnull)  # the engine keeps no settings
        self.game.init()

    def get_observation_space(self) -> spaces.Tuple[Any]:
        frames = self._history.space(self._shrink)
        return spaces.Tuple((frames, spaces.Box(np.zeros_like(self._most), self._most)))

    def get_action_space(self) -> spaces.Discrete:
        return spaces.Discrete(len(self._table))

    def send_control(self, control: Any) -> None:
        """Hold the buttons of an action from now on. Returns at the game's next tic, because
        VizDoom cannot press buttons without waiting.
        """
        if not self.game.is_episode_finished():
            self.game.set_action(self._table[control])
            self.game.advance_action(1)

    def begin(self) -> Picture:
        """Begin a new episode; takes a third of a second."""
        self.game.set_seed(int(self.random.integers(2**32)))
        self.game.new_episode()
        self._tics = 0
        self._rewarded = self._reward_so_far()
        self._history.clear()
        self._newest = self._see()
        return self._newest

    def look(self) -> Picture:
        """Wait for the game's next tic, and return what it shows. Raises if the engine is gone."""
        if not self.game.is_episode_finished():
            self.game.advance_action(1)
        # after the end there is no new frame, so the history repeats the newest
        if not self.game.is_episode_finished():
            self._newest = self._see()
        return self._newest

    def judge(self, state: Picture) -> tuple[float, bool]:
        before, self._rewarded = self._rewarded, self._reward_so_far()
        return self._reward_scale * (self._rewarded - before), self.game.is_episode_finished()

    def _reward_so_far(self) -> float:
        # at the end of a map, the time is 0 again
        self._tics = max(self._tics, int(self.game.get_episode_time()))
        return float(self.game.get_total_reward() + self._tic_reward * self._tics)

    def observe(self, state: Picture) -> list[Any]:
        frame, variables = state
        return [self._history(self._shrink(frame)), variables]

    def render(self) -> Frame:
        """Return the newest frame that the agent saw, uint8 [120, 160, 3] RGB."""
        return self._newest[0]

    def close(self) -> None:
        self.game.close()

    def _see(self) -> Picture:
        state = self.game.get_state()
        variables = np.zeros(0) if state.game_variables is None else state.game_variables
        return state.screen_buffer, np.clip(variables, 0.0, self._most).astype(np.float32)


class VizDoomEnv(RealTimeEnv):
    """A VizDoom scenario with a decision every `tics_per_step` tics (2 or more) of 1/35 s."""

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know (see `RealTimeEnv.memory_arguments`): item 0 of an
        observation is a stack of frames.
        """
        time_step_s = {"time_step_duration": arguments["tics_per_step"] * TIC_S}
        return said_to_memory({**arguments, **time_step_s}, (0, "frames"))

    @also_takes(VizDoomInterface)
    @in_ranges
    def __init__(
        self,
        tics_per_step: Annotated[int, Meta(ge=2)] = 4,
        ep_max_length: int = 300,
        act_buf_len: int = 3,
        **game: Any,
    ) -> None:
        """Take arguments as `VizDoomInterface` and `RealTimeEnv`. Pressing buttons and getting the
        frame takes a tic each.
        """
        interface = partial(VizDoomInterface, **game)
        last_tic_s = (tics_per_step - 1) * TIC_S  # the frame comes one tic later
        super().__init__(
            interface,
            tics_per_step * TIC_S,
            ep_max_length,
            act_buf_len,
            last_tic_s,
        )


def _config_of(scenario: str, shipped: Path) -> Path:
    for path in (shipped / f"{scenario}.cfg", Path(scenario)):
        if path.suffix == ".cfg" and path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in shipped.glob("*.cfg")))
    raise ConfigError(
        f"no VizDoom scenario {scenario!r}: give the path of a .cfg, or one of {names}"
    )


def _member(enum: Any, name: str) -> Any:
    if name not in enum.__members__:
        raise ConfigError(
            f"VizDoom has no {enum.__name__} {name!r}; it has {', '.join(enum.__members__)}"
        )
    return enum.__members__[name]
