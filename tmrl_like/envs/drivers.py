"""Drivers that take over from a policy in any environment: a person at the keyboard or a gamepad
(see `types.Driver`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from numbers import Real
from typing import Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces

from tmrl_like.envs.actions import typed_action
from tmrl_like.envs.keyboards import open_keyboard
from tmrl_like.errors import ConfigError, EnvironmentAwayError, MissingExtraError, expect

ARROWS: Mapping[str, Sequence[float]] = {"left": [-1], "right": [1], "up": [0, 1], "down": [0, -1]}


def deflected(deflection: Sequence[float], space: gymnasium.Space[Any], rest: Any) -> Any:
    """Return the action of a Box for a deflection of each component: 0 gives `rest`, -1 and 1 give
    the bounds.

    `deflection` is clipped to [-1, 1]; components that it lacks are 0. Raise ConfigError if the
    space is no bounded Box.
    """
    if not _is_deflected(space):
        raise ConfigError(f"axes deflect numbers with bounds, and actions are {space}")
    ways = np.zeros(int(np.prod(space.shape)))
    given = np.clip(deflection, -1.0, 1.0)[: len(ways)]
    ways[: len(given)] = given
    ways, rest = ways.reshape(space.shape), np.asarray(rest, np.float64)
    return (
        rest + np.where(ways > 0, ways * (space.high - rest), ways * (rest - space.low))
    ).astype(space.dtype)


def _is_deflected(space: gymnasium.Space[Any]) -> TypeGuard[spaces.Box]:
    return isinstance(space, spaces.Box) and space.is_bounded()


class KeyDriver:
    """Drives by keys while they are held down, whichever window has the focus."""

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        default_action: Any,
        keys: Mapping[str, Any] = ARROWS,
        give_back_after_s: float = 0.5,
    ) -> None:
        """Open the keyboard.

        Args:
            action_space: the environment's action space.
            default_action: sent while it drives and no key is down.
            keys: what each key does. In a bounded Box: deflections of its components, -1 to 1,
                which are added up for all held keys (the arrow keys steer the first two). In other
                spaces: the whole action; of several held keys, the first one's is sent.
            give_back_after_s: seconds with no key held until it gives back.

        Raises:
            ConfigError: there is no such key or no screen, or what a key does is not an action.
            MissingExtraError: the library that reads keys is not installed.
        """
        if not all(_is_told(action_space, value) for value in keys.values()):
            wanted = "a list of deflections, [1]" if _is_deflected(action_space) else "an action"
            raise ConfigError(
                f"keys is {dict(keys)}; for actions of {action_space} expected of each key {wanted}"
            )
        self._space, self._rest, self._actions = action_space, default_action, dict(keys)
        self._lasts = _Lasting(give_back_after_s)
        self._keyboard = open_keyboard()
        self._codes = {name: self._keyboard.key(name) for name in keys}

    def __call__(self, obs: Any) -> Any:
        """Return the action of the keys that are down, or None while they do not drive."""
        held = [name for name, code in self._codes.items() if self._keyboard.is_down(code)]
        return self._action_of(held) if self._lasts(bool(held)) else None

    def _action_of(self, held: Collection[str]) -> Any:
        given = [value for name, value in self._actions.items() if name in held]
        if not _is_deflected(self._space):
            return typed_action(given[0], self._space) if given else self._rest
        sums = [sum(values) for values in zip_longest(*given, fillvalue=0)]
        return deflected(sums, self._space, self._rest)

    def close(self) -> None:
        """Close the keyboard."""
        self._keyboard.close()


def _is_told(space: gymnasium.Space[Any], value: Any) -> bool:
    """Whether a value is what a key may do: deflections in a bounded Box, otherwise an action."""
    if _is_deflected(space):
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        return is_list and all(isinstance(way, Real) for way in value)
    return bool(space.contains(typed_action(value, space)))


class _Lasting:
    """Tells whether something is touched, or was less than `lasts_s` seconds ago."""

    def __init__(self, lasts_s: float) -> None:
        self._lasts_s, self._until = lasts_s, 0.0

    def __call__(self, touched: bool) -> bool:
        now = time.monotonic()
        if touched:
            self._until = now + self._lasts_s
        return now < self._until


class Gamepad:
    """The gamepad of this machine, read with pygame; it may be plugged in later.

    Its methods raise EnvironmentAwayError while there is no gamepad.
    """

    def __init__(self) -> None:
        """Load pygame; raise MissingExtraError if it is not installed."""
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError:
            raise MissingExtraError(
                "a gamepad needs pygame: pip install 'tmrl_like[gamepad]'"
            ) from None
        self._pygame = pygame
        self._is_open = False

    def axis(self, number: int) -> float:
        """Return the position of an axis, -1 to 1."""
        return float(self._newest().get_axis(number))

    def is_down(self, button: int) -> bool:
        """Whether a button is held down."""
        return bool(self._newest().get_button(button))

    def _newest(self) -> Any:
        # opened in the thread that reads it, as the system's event queue requires
        if not self._is_open:
            os.environ.setdefault("SDL_JOYSTICK_ALLOW_BACKGROUND_EVENTS", "1")
            asked = os.environ.get("SDL_VIDEODRIVER")
            os.environ["SDL_VIDEODRIVER"] = asked or "dummy"
            self._pygame.display.init()
            if asked is None:
                # a game that the environment starts needs a real window
                del os.environ["SDL_VIDEODRIVER"]
            self._pygame.joystick.init()
            self._is_open = True
        self._pygame.event.pump()
        if not self._pygame.joystick.get_count():
            raise EnvironmentAwayError("there is no gamepad: plug one in")
        return self._pygame.joystick.Joystick(0)  # another one, once it was unplugged


class AxesDriver:
    """Drives a bounded Box by axes, while a person moves one of them."""

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        default_action: Any,
        axes: Sequence[Any],
        scale: Sequence[float],
        dead_zone: float,
        give_back_after_s: float,
    ) -> None:
        """Take arguments as in `GamepadDriver`.

        Raises:
            ConfigError: actions are no bounded Box, or there are fewer scales than axes.
        """
        deflected((), action_space, default_action)
        expect(
            len(scale) >= len(axes), "scale", list(scale), f"a number for each of {len(axes)} axes"
        )
        self._axes = axes
        self._space, self._rest, self._scale = action_space, default_action, scale
        self._dead_zone, self._lasts = dead_zone, _Lasting(give_back_after_s)

    def drive(self, values: Sequence[float], is_held: bool = False) -> Any:
        """Return the action for axes at these positions, -1 to 1, or None if nobody moves them.

        With `is_held` it drives even if no axis is moved.
        """
        moved = [value if abs(value) > self._dead_zone else 0.0 for value in values]
        if not self._lasts(any(moved) or is_held):
            return None
        ways = [value * scale for value, scale in zip(moved, self._scale, strict=False)]
        return deflected(ways, self._space, self._rest)


class GamepadDriver(AxesDriver):
    """Drives a bounded Box by the axes of a gamepad, while an axis is moved or a button is held."""

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
        """Set up the driver; a gamepad may be plugged in later.

        Args:
            action_space: the environment's action space.
            default_action: sent while it drives and no axis is moved.
            axes: the gamepad's axis for each component of the action; the left stick's are 0
                (right) and 1 (down).
            scale: factor of each axis; -1 reverses it.
            button: takes over while it is held, even if no axis is moved.
            dead_zone: an axis deflected by no more than this counts as not moved.
            give_back_after_s: seconds with nothing moved until it gives back.

        Raises:
            ConfigError: actions are no bounded Box, or there are fewer scales than axes.
            MissingExtraError: pygame, which reads gamepads, is not installed.
        """
        super().__init__(action_space, default_action, axes, scale, dead_zone, give_back_after_s)
        self._pad = Gamepad()
        self._button = button

    def __call__(self, obs: Any) -> Any:
        """Return the action of the axes, or None while they do not drive. Raise
        EnvironmentAwayError if there is no gamepad.
        """
        return self.drive(
            [self._pad.axis(axis) for axis in self._axes], self._pad.is_down(self._button)
        )

    def close(self) -> None:
        """Do nothing; there is nothing to release."""
