"""Doom, in real time: the game goes on at 35 tics a second, whether anybody decides or not.

VizDoom's engine runs in its asynchronous mode, as a process of its own. A step lasts some tics: the buttons of an
action are held until the next one, and the newest frame is what the agent sees. Needs the extra `vizdoom`, and no
display. The engine makes an empty folder `_vizdoom` where it is started.

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

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium.spaces as spaces
import numpy as np
from rtgym import RealTimeGymInterface

from tmrl_like.base.factories import said_to_memory
from tmrl_like.envs.real_time import RealTimeEnv, also_takes
from tmrl_like.envs.vision import Frame, History, Shrink, stack_of
from tmrl_like.errors import ConfigError, MissingExtraError

TIC_S = 1 / 35

Buttons = Sequence[str]
TURN_AND_SHOOT: tuple[Buttons, ...] = (
    (),
    ("TURN_LEFT",),
    ("TURN_RIGHT",),
    ("ATTACK",),
    ("TURN_LEFT", "ATTACK"),
    ("TURN_RIGHT", "ATTACK"),
)
HEALTH_AND_AMMO = {"HEALTH": 100.0, "AMMO2": 30.0}


class VizDoomInterface(RealTimeGymInterface):  # type: ignore[misc]
    """rtgym interface of a VizDoom scenario.

    Observation: the newest frames, uint8 [frames, height, width] (in colour [frames, height, width, 3]), newest last,
    and the game variables, float32 [variables]. Action: an entry of the table of button combinations. Reward: the
    scenario's, scaled. The episode terminates when the player dies or the scenario is over.

    Attributes:
        game: the `vizdoom.DoomGame`.
    """

    def __init__(
        self,
        scenario: str = "defend_the_center",
        actions: Sequence[Buttons] = TURN_AND_SHOOT,
        variables: Mapping[str, float] = HEALTH_AND_AMMO,
        size: tuple[int, int] = (60, 80),
        grey: bool = True,
        frames: int = 4,
        reward_scale: float = 1.0,
    ) -> None:
        """Start the engine.

        Args:
            scenario: one of those that come with VizDoom, or the path of a `.cfg`.
            actions: which buttons each action holds, by VizDoom's names; the first is the default action.
            variables: the game variables in the observation, by VizDoom's names, each with its largest value.
            size: height and width of the frames, in pixels.
            grey: one value per pixel instead of three.
            frames: how many of the newest frames are in the observation.
            reward_scale: the scenario's reward is multiplied by this.

        Raises:
            MissingExtraError: VizDoom is not installed.
            ConfigError: no such scenario, button or variable.
        """
        try:
            import vizdoom
        except ImportError as error:
            raise MissingExtraError(f"Doom needs VizDoom: pip install 'tmrl_like[vizdoom]' ({error})") from None
        for name, most in variables.items():
            if not most > 0:
                raise ConfigError(f"the largest value of Doom's {name} is {most}; it must be positive")
        if not math.isfinite(reward_scale):
            raise ConfigError(f"Doom's reward_scale is {reward_scale}; it must be a number")
        if not actions or frames < 1:
            raise ConfigError(f"Doom needs at least one action and one frame, not {len(actions)} and {frames}")
        names = list(dict.fromkeys(button for held in actions for button in held))
        self._table = [[name in held for name in names] for held in actions]
        self._most = np.array(list(variables.values()), np.float32)
        self._shrink = Shrink(size, grey=grey)
        self._history = History(frames)
        self._picture: Frame
        self._variables = np.zeros(len(variables), np.float32)
        self._rewarded = 0.0
        self._reward_scale = reward_scale
        self.game = vizdoom.DoomGame()
        self.game.load_config(str(_config_of(scenario, Path(vizdoom.scenarios_path))))
        self.game.set_available_buttons([_member(vizdoom.Button, name) for name in names])
        self.game.set_available_game_variables([_member(vizdoom.GameVariable, name) for name in variables])
        self.game.set_mode(vizdoom.Mode.ASYNC_PLAYER)
        self.game.set_screen_format(vizdoom.ScreenFormat.RGB24)
        self.game.set_screen_resolution(vizdoom.ScreenResolution.RES_160X120)
        self.game.set_episode_timeout(0)  # the environment has ep_max_length
        self.game.set_window_visible(False)
        self.game.set_doom_config_path(os.devnull)  # the engine keeps no settings
        self.game.init()

    def get_observation_space(self) -> spaces.Tuple[Any]:
        frames = spaces.Box(0, 255, (self._history.length, *self._shrink.shape), np.uint8)
        return spaces.Tuple((frames, spaces.Box(np.zeros_like(self._most), self._most)))

    def get_action_space(self) -> spaces.Discrete:
        return spaces.Discrete(len(self._table))

    def get_default_action(self) -> np.int64:
        return np.int64(0)

    def send_control(self, control: Any) -> None:
        """Hold these buttons from now on. Returns at the game's next tic: VizDoom cannot press without waiting."""
        if control is not None and not self.game.is_episode_finished():
            self.game.set_action(self._table[control])
            self.game.advance_action(1, False)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[list[Any], dict[str, Any]]:
        """Begin a new episode; takes a third of a second."""
        if seed is not None:
            self.game.set_seed(seed)
        self.game.new_episode()
        self._rewarded = 0.0
        self._history.clear()
        self._look()
        return self._observation(), {}

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], np.float32, bool, dict[str, Any]]:
        """Wait for the game's next tic, and look. Raises if the engine is gone."""
        if not self.game.is_episode_finished():
            self.game.advance_action(1)
        terminated = self.game.is_episode_finished()
        if not terminated:  # then there is no new frame, and the history goes on with the newest
            self._look()
        rewarded = self.game.get_total_reward()
        rew, self._rewarded = np.float32(self._reward_scale * (rewarded - self._rewarded)), rewarded
        return self._observation(), rew, terminated, {}

    def render(self) -> Frame:
        """The game's newest frame that the agent saw, uint8 [120, 160, 3] RGB."""
        return self._picture

    def wait(self) -> None:
        """Between two episodes nobody is at the controls."""

    def close(self) -> None:
        self.game.close()

    def _look(self) -> None:
        state = self.game.get_state()
        self._picture = state.screen_buffer
        self._frame = self._shrink(self._picture)
        if len(self._most):
            assert state.game_variables is not None
            self._variables = np.clip(state.game_variables, 0.0, self._most).astype(np.float32)

    def _observation(self) -> list[Any]:
        return [self._history(self._frame), self._variables]


class VizDoomEnv(RealTimeEnv):
    """A VizDoom scenario, with a decision every `tics_per_step` tics (2 or more) of 1/35 s."""

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """As `RealTimeEnv.memory_arguments`: item 0 of an observation is a stack of frames."""
        stack, time_step_s = stack_of(0, arguments["frames"]), arguments["tics_per_step"] * TIC_S
        return said_to_memory(arguments) | {"frame_stack": stack, "time_step_duration": time_step_s}

    @also_takes(VizDoomInterface)
    def __init__(self, tics_per_step: int = 4, ep_max_length: int = 300, act_buf_len: int = 3, **game: Any) -> None:
        """As `VizDoomInterface` and `RealTimeEnv`."""
        if tics_per_step < 2:
            raise ConfigError(f"tics_per_step is {tics_per_step}; to press and to look takes a tic each: 2 or more")
        interface = partial(VizDoomInterface, **game)
        last_tic_s = (tics_per_step - 1) * TIC_S  # the frame is that of the tic after it
        super().__init__(interface, tics_per_step * TIC_S, ep_max_length, act_buf_len, last_tic_s, wait_on_done=False)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Stop the clock and begin a new episode, which takes longer than a step."""
        self.unwrapped.wait()  # type: ignore[attr-defined]
        return super().reset(seed=seed, options=options)


def _config_of(scenario: str, shipped: Path) -> Path:
    for path in (shipped / f"{scenario}.cfg", Path(scenario)):
        if path.suffix == ".cfg" and path.is_file():
            return path
    names = ", ".join(sorted(path.stem for path in shipped.glob("*.cfg")))
    raise ConfigError(f"no VizDoom scenario {scenario!r}: give the path of a .cfg, or one of {names}")


def _member(enum: Any, name: str) -> Any:
    if name not in enum.__members__:
        raise ConfigError(f"VizDoom has no {enum.__name__} {name!r}; it has {', '.join(enum.__members__)}")
    return enum.__members__[name]
