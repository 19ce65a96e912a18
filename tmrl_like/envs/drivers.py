"""Who takes over from a policy, in any environment: a person at the keyboard, or at a gamepad (see
`types.Driver`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.envs.keyboards import open_keyboard
from tmrl_like.errors import ConfigError, EnvironmentAwayError, MissingExtraError

ARROWS: Mapping[str, Sequence[float]] = {"left": [-1], "right": [1], "up": [0, 1], "down": [0, -1]}


def deflected(deflection: Sequence[float], space: gymnasium.Space[Any], rest: Any) -> Any:
    """The action of a stick in each component of a Box: at 0 that of `rest`, at -1 and 1 the
    bounds.

    `deflection` is cut off beyond 1, and 0 in components that it does not have. ConfigError: no
    bounded Box.
    """
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        raise ConfigError(
            f"actions of {space} are no deflections: give each key an action, as in keys: {{left: "
            f"0}}"
        )
    ways = np.zeros(int(np.prod(space.shape)))
    given = np.clip(deflection, -1.0, 1.0)[: len(ways)]
    ways[: len(given)] = given
    ways, rest = ways.reshape(space.shape), np.asarray(rest, np.float64)
    return (
        rest + np.where(ways > 0, ways * (space.high - rest), ways * (rest - space.low))
    ).astype(space.dtype)


class KeyDriver:
    """Keys drive, while they are held down, or between two presses of one key; whatever window has
    the focus.
    """

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        default_action: Any,
        keys: Mapping[str, Any] = ARROWS,
        toggle: str | None = None,
        give_back_after_s: float = 0.5,
    ) -> None:
        """Open the keyboard.

        Args:
            action_space: of the environment.
            default_action: sent where no key is down.
            keys: what each key does: to a bounded Box deflections of its components, -1 to 1, which
                are added up (the arrow keys steer the first two); or the whole action, where
                actions are no Box, the first one's.
            toggle: this key takes over and gives back; None: so does holding any of `keys`.
            give_back_after_s: without `toggle`: after so long with no key held.

        Raises:
            ConfigError: there is no such key, no screen, or no action of a key.
            MissingExtraError: what reads keys is not installed.
        """
        is_box = isinstance(action_space, spaces.Box)
        if any(isinstance(value, Sequence) != is_box for value in keys.values()) and (
            is_box or isinstance(action_space, spaces.Discrete)
        ):
            wanted = "a list of deflections, [1]" if is_box else "the number of an action"
            raise ConfigError(
                f"keys is {dict(keys)}; for actions of {action_space} expected of each key {wanted}"
            )
        self._space, self._rest, self._actions = action_space, default_action, dict(keys)
        self._action_of(keys)
        self._toggle, self._was_down, self._is_on = toggle, False, False
        self._lasts = _Lasting(give_back_after_s)
        self._keyboard = open_keyboard()
        names = [*keys, toggle] if toggle else [*keys]
        self._codes = {name: self._keyboard.key(name) for name in names}

    def __call__(self, obs: Any) -> Any:
        """The action of the keys that are down; None: they do not drive."""
        held = [name for name, code in self._codes.items() if self._keyboard.is_down(code)]
        if self._toggle is not None:
            self._is_on ^= self._toggle in held and not self._was_down
            self._was_down = self._toggle in held
        return (
            self._action_of(held)
            if self._is_on or (not self._toggle and self._lasts(bool(held)))
            else None
        )

    def _action_of(self, held: Collection[str]) -> Any:
        given = [value for name, value in self._actions.items() if name in held]
        if not isinstance(self._space, spaces.Box):
            return given[0] if given else self._rest
        size = max(map(len, given), default=0)
        return deflected(
            [sum(v[i] for v in given if i < len(v)) for i in range(size)], self._space, self._rest
        )

    def close(self) -> None:
        """Let the keyboard go."""
        self._keyboard.close()


class _Lasting:
    """Whether something is touched, or was a little while ago."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s, self._until = lasts_s, 0.0

    def __call__(self, touched: bool) -> bool:
        now = time.monotonic()
        if touched:
            self._until = now + self._lasts_s
        return now < self._until


class Gamepad:
    """The gamepad of this machine, by pygame; one may be plugged in later.

    Its methods raise EnvironmentAwayError while there is none.
    """

    def __init__(self) -> None:
        """MissingExtraError: pygame is not installed."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError:
            raise MissingExtraError(
                "a gamepad needs pygame: pip install 'tmrl_like[gamepad]'"
            ) from None
        self._pygame = pygame
        self._pad: Any = None

    def axis(self, number: int) -> float:
        """Where an axis is, -1 to 1."""
        return float(self._newest().get_axis(number))

    def is_down(self, button: int) -> bool:
        """Whether somebody holds a button down."""
        return bool(self._newest().get_button(button))

    def _newest(self) -> Any:
        # in the thread that will ask it, as the system's queue of events wants
        if self._pad is None:
            os.environ.setdefault("SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS", "1")
            asked = os.environ.get("SDL_VIDEODRIVER")
            os.environ["SDL_VIDEODRIVER"] = asked or "dummy"
            self._pygame.display.init()
            if asked is None:
                # a game that the environment starts wants a window
                del os.environ["SDL_VIDEODRIVER"]
            self._pygame.joystick.init()
        self._pygame.event.pump()
        if not self._pygame.joystick.get_count():
            self._pad = None
            raise EnvironmentAwayError("there is no gamepad: plug one in")
        self._pad = self._pad or self._pygame.joystick.Joystick(0)
        return self._pad


class AxesDriver:
    """Axes that a person moves drive a bounded Box while one of them is moved."""

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        default_action: Any,
        scale: Sequence[float],
        dead_zone: float,
        give_back_after_s: float,
    ) -> None:
        """As `GamepadDriver` has them; raises ConfigError where actions are no bounded Box."""
        deflected((), action_space, default_action)
        self._space, self._rest, self._scale = action_space, default_action, scale
        self._dead_zone, self._lasts = dead_zone, _Lasting(give_back_after_s)

    def drive(self, values: Sequence[float], is_held: bool = False) -> Any:
        """The action of axes that stand so, -1 to 1; None: nobody moves them. `is_held`: it drives
        all the same.
        """
        moved = [value if abs(value) > self._dead_zone else 0.0 for value in values]
        if not self._lasts(any(moved) or is_held):
            return None
        ways = [value * scale for value, scale in zip(moved, self._scale, strict=False)]
        return deflected(ways, self._space, self._rest)


class GamepadDriver(AxesDriver):
    """The axes of a gamepad drive a bounded Box while one of them, or a button, is moved."""

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        default_action: Any,
        axes: Sequence[int] = (0, 1),
        scale: Sequence[float] = (1.0, -1.0),
        button: int = 0,
        dead_zone: float = 0.1,
        give_back_after_s: float = 0.5,
    ) -> None:
        """Prepare; a gamepad may be plugged in later.

        Args:
            action_space: of the environment.
            default_action: sent where no axis is moved.
            axes: of the gamepad, for each component of the action; the left stick's are 0 (right)
                and 1 (down).
            scale: by what each is multiplied: -1 turns it round.
            button: drives as well while it is held: nothing moved, then.
            dead_zone: an axis that is moved less is not moved.
            give_back_after_s: after so long with nothing moved.

        Raises:
            ConfigError: actions are no bounded Box, or there are not as many axes as scales.
            MissingExtraError: pygame, which reads gamepads, is not installed.
        """
        super().__init__(action_space, default_action, scale, dead_zone, give_back_after_s)
        if len(axes) != len(scale):
            raise ConfigError(
                f"{len(axes)} axes and {len(scale)} values of scale; expected one of each other"
            )
        self._pad = Gamepad()
        self._axes, self._button = axes, button

    def __call__(self, obs: Any) -> Any:
        """The action of the axes; None: they do not drive. EnvironmentAwayError: there is no
        gamepad.
        """
        return self.drive(
            [self._pad.axis(axis) for axis in self._axes], self._pad.is_down(self._button)
        )

    def close(self) -> None:
        """Nothing is held."""
