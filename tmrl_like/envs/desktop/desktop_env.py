"""Any game in a window of the screen: it is seen in pictures of the window and driven by keys.

To play a game of your own, copy `CarOnScreen` and its experiment from the guide: a subclass of
`DesktopGameInterface` with a method `judge`, which returns the reward of a step.

| | `my_game` |
|---|---|
| class | `tmrl_like.envs.desktop.DesktopGameEnv` |
| time-step | 50 ms |
| episode | 1000 steps |
| reward | what your `judge` says |
| ends | when your `judge` says so |

| observation of `my_game` | shape | dtype | range | unit |
|---|---|---|---|---|
| the last four pictures of the window, grey, newest last | [4, 64, 64] | uint8 | 0 to 255 | |
| the last 2 actions | [2] | float32 | -1 to 1 | |

| action of `my_game` | shape | dtype | range | unit |
|---|---|---|---|---|
| for each pair of keys: beyond a third, that key is held | [2] | float32 | -1 to 1 | |
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from rtgym import RealTimeGymInterface

from tmrl_like.base.factories import MISSING, argument_of, said_to_memory
from tmrl_like.base.options import AboveZero, NotNegative, Positive, in_ranges
from tmrl_like.envs.desktop.desktop_game import FrozenWatch, GameProcess
from tmrl_like.envs.desktop.desktop_screen import Region, Screen
from tmrl_like.envs.desktop.game_window import Window, find_window, focus, windows_now
from tmrl_like.envs.desktop.telemetry import Record, Telemetry
from tmrl_like.envs.float32 import closed_by_errors
from tmrl_like.envs.keyboards import Keyboard
from tmrl_like.envs.real_time import RealTimeEnv
from tmrl_like.envs.vision import Frame, History, Shrink
from tmrl_like.errors import EnvironmentFaultError, expect

# share of an axis: a third of the actions goes left, a third straight on, a third right
PRESSED_FROM = 1 / 3
_ENDS_WITHIN_S = 0.2

Axis = tuple[str, str]  # keys for -1 and +1; "" for none


class DesktopGameInterface(RealTimeGymInterface):  # type: ignore[misc]
    """rtgym interface of a game in a window.

    Observation: the last `frames` pictures, newest last, uint8 [frames, height, width], or [frames,
    height, width, 3] in colour. Action: one number in [-1, 1] for each of `axes`, float32 [A].

    The game and its window are looked for at the first reset, and again at the reset after a fault;
    a game that was started by `command` is then ended and started again. It is a fault if the game
    ended, its window is gone or lost the focus (no key is pressed then), its picture is frozen, or
    its telemetry fell silent.
    """

    @in_ranges
    def __init__(
        self,
        title: str,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        axes: Sequence[Axis] = (("left", "right"), ("down", "up")),
        restart_key: str = "",
        restart_wait_s: NotNegative = 0.5,
        size: tuple[int, int] = (64, 64),
        grey: bool = True,
        frames: Positive = 4,
        place: tuple[int, int, int, int] | None = None,
        telemetry: Callable[[], Telemetry] | None = None,
        start_within_s: NotNegative = 20.0,
        frozen_after_s: AboveZero = 10.0,
    ) -> None:
        """Set up the interface, without touching screen or game.

        Args:
            title: a part of the window's title.
            command: starts the game, which is then played in a window that did not exist before;
                None if the game is started by other means.
            environment: variables of the game's process, in addition to those of this one.
            axes: for each number of the action, the keys for -1 and +1, held beyond a third of the
                way; "" for none.
            restart_key: key that begins an episode; "" for none.
            restart_wait_s: seconds after `restart_key` until the game is ready.
            size: height and width of the pictures.
            grey: pictures without colour.
            frames: number of pictures in an observation.
            place: left, top, width and height to give to the window's contents; None leaves them
                alone.
            telemetry: makes the receiver of the records that the game sends; None if it sends none.
            start_within_s: seconds after the start within which the window must appear; less than
                the worker's `hang_timeout_s`.
            frozen_after_s: the game hangs if its picture does not change for this many seconds;
                `.inf` switches this off.

        Raises:
            ConfigError: an argument makes no sense.
        """
        expect(
            all(len(keys) == 2 for keys in axes),
            "axes",
            axes,
            "two keys for each number of the action",
        )
        is_place = place is None or (len(place) == len(Region._fields) and min(place[2:]) > 0)
        expect(is_place, "place", place, "left, top, width, height of a window")
        self._title = title
        self._place = None if place is None else Region(*place)
        self._axes = [tuple(axis) for axis in axes]
        self._restart_key, self._restart_wait_s = restart_key, restart_wait_s
        self._make_telemetry = telemetry
        self._start_within_s = start_within_s
        self._game = GameProcess(command or (), environment)
        self._frozen = FrozenWatch(frozen_after_s)
        self._view: Any = Shrink(size, grey=grey)  # a subclass may have another
        self._images = History(frames)
        self._frame: Frame | None = None
        self._screen: Screen | None = None
        self._keyboard: Keyboard | None = None
        self._window: Window | None = None
        self._telemetry: Telemetry | None = None

    # -- what a subclass defines ------------------------------------------------------------------

    def judge(self, frame: Frame, record: Record) -> tuple[float, bool, dict[str, Any]]:
        """Return what a step was worth.

        Args:
            frame: the window's contents, uint8 [H, W, 3] RGB.
            record: the newest telemetry; empty if there is none.

        Returns:
            Reward, whether the episode terminates, info.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must say what a step is worth: write judge()"
        )

    def begin_episode(self) -> None:
        """Bring the game to the beginning of an episode; called while no key is held."""
        if self._restart_key:
            self.tap(self._restart_key)
            time.sleep(self._restart_wait_s)

    def observe(self, frame: Frame, record: Record) -> list[Any]:
        """Return the observation; called once a step, and once a reset after `begin_episode`."""
        return [self._images(self._view(frame))]

    def describe(self, frame: Frame, record: Record) -> dict[str, Any]:
        """Return items of `info` for an observation, of resets as well; called after `judge` or
        `begin_episode`.
        """
        return {}

    def get_observation_space(self) -> spaces.Tuple[Any]:
        return spaces.Tuple((self._images.space(self._view),))

    def get_action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (len(self._axes),))

    def get_default_action(self) -> NDArray[np.float32]:
        return np.zeros(len(self._axes), np.float32)

    def control(self, action: NDArray[np.float32]) -> None:
        """Apply an action, which stays in effect until the next one."""
        assert self._keyboard is not None
        pushed = zip(self._axes, action, strict=True)
        keys = [
            keys[0 if value < 0.0 else 1] for keys, value in pushed if abs(value) > PRESSED_FROM
        ]
        self._keyboard.hold(filter(None, keys))

    def let_go(self) -> None:
        """Stop steering: release all keys."""
        if self._keyboard is not None:
            self._keyboard.close()

    # -- what a subclass can use -------------------------------------------------------------------

    def tap(self, key: str) -> None:
        """Press a key, and release it a tenth of a second later. Raise EnvironmentFaultError if
        the window lost the focus.
        """
        if self._keyboard is not None:
            self._check_focus()
            self._keyboard.tap(key)

    def look(self) -> tuple[Frame, Record]:
        """Return what the window shows now, uint8 [H, W, 3] RGB, and the newest telemetry, which is
        empty if there is none.

        Raises:
            EnvironmentFaultError: the game ended, its picture is frozen, or its telemetry fell
                silent.
        """
        if self._screen is None or self._window is None:
            raise EnvironmentFaultError("the game is not open: reset the environment")
        self._check_alive()
        frame = self._screen.grab(self._window.region())
        self._frozen.look(frame)
        self._frame = frame
        return frame, () if self._telemetry is None else self._telemetry.newest()

    # -- rtgym's interface -------------------------------------------------------------------------

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        with self._closed_by_errors():
            self._open()
            self.let_go()
            self._frozen.reset()  # it may have stood still between two episodes
            self.begin_episode()
            self._images.clear()
            self._frozen.reset()
            frame, record = self.look()
            return self.observe(frame, record), self.describe(frame, record)

    def send_control(self, control: NDArray[np.float32]) -> None:
        if self._window is not None:
            with self._closed_by_errors():
                self._check_focus()
                self.control(control)

    def get_obs_rew_terminated_info(self) -> tuple[list[Any], float, bool, dict[str, Any]]:
        with self._closed_by_errors():
            frame, record = self.look()
            reward, terminated, info = self.judge(frame, record)
            return (
                self.observe(frame, record),
                reward,
                terminated,
                self.describe(frame, record) | info,
            )

    def render(self) -> Frame | None:
        """Return what `look` saw last, uint8 [H, W, 3] RGB, or None before that."""
        return self._frame

    def wait(self) -> None:
        """Stop steering between two episodes."""
        self.let_go()

    def close(self) -> None:
        """Release everything; end the game if `command` started it. Calling it twice is fine."""
        self.let_go()
        for part in (self._telemetry, self._screen, self._window):
            if part is not None:
                part.close()
        self._game.close()
        self._telemetry = self._screen = self._window = self._keyboard = None

    @contextlib.contextmanager
    def _closed_by_errors(self) -> Iterator[None]:
        """Close everything if the block raises, so that no key stays down and the next reset starts
        afresh. If the game has ended, raise that fault instead of the one that followed from it.
        """
        with closed_by_errors(self):
            try:
                yield
            except EnvironmentFaultError:
                self.let_go()
                self._check_alive(_ENDS_WITHIN_S)
                raise

    def _open(self) -> None:
        """Start the game if there is a `command`, and open its window and controls. If that is done
        already, give the window its place and the focus again.
        """
        if self._window is not None:
            self._check_alive()
            focus(self._window, self._place)
            return
        self.close()
        self._screen = Screen()
        others, within_s = set[int](), 0.0
        if self._game.command:
            others, within_s = windows_now(), self._start_within_s
            self._game.start()
        self._window = find_window(self._title, within_s, others, self._check_alive)
        focus(self._window, self._place)
        self.open_controls()
        if self._make_telemetry is not None:
            self._telemetry = self._make_telemetry()

    def open_controls(self) -> None:
        """Open the devices that steer the game."""
        self._keyboard = Keyboard()
        self._keyboard.free(
            {key for keys in (*self._axes, (self._restart_key,)) for key in keys if key}
        )

    def _check_focus(self) -> None:
        if self._window is not None and not self._window.has_focus():
            raise EnvironmentFaultError(
                f"the window {self._title!r} lost the focus: keys would go elsewhere"
            )

    def _check_alive(self, within_s: float = 0.0) -> None:
        code = self._game.exit_code(within_s)
        if code is not None:
            raise EnvironmentFaultError(f"the game ended with exit code {code}")


class DesktopGameEnv(RealTimeEnv):
    """A game in a window, in real time."""

    has_window = True  # it is on the screen already

    @staticmethod
    def memory_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a memory must know (see `RealTimeEnv.memory_arguments`): item 0 of an
        observation is a stack of the interface's `frames`, if its constructor takes them.
        """
        frames = argument_of(arguments["interface"], "frames")
        known = {"frames": 1 if frames is MISSING else frames}
        return said_to_memory({**arguments, **known}, (0, "frames"))

    def __init__(
        self,
        interface: Callable[[], Any],
        time_step_duration: float = 0.05,
        ep_max_length: int = 1000,
        act_buf_len: int = 2,
        inputs: Sequence[Any] | None = None,
    ) -> None:
        """Take arguments as `RealTimeEnv`; `interface` makes a `DesktopGameInterface`, which looks
        for its game at the first reset.
        """
        image_after_s = 0.8 * time_step_duration  # grabbing an image takes milliseconds
        super().__init__(
            interface, time_step_duration, ep_max_length, act_buf_len, image_after_s, inputs=inputs
        )
