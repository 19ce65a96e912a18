"""A 3D mouse as a driver: it takes over from a policy while a person moves its cap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium

from tmrl_like.envs.drivers import AxesDriver
from tmrl_like.errors import EnvironmentAwayError, MissingExtraError, expect

AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_MOST_REPORTS = 20  # read at once; the mouse sends about 250 a second


class SpaceMouseDriver(AxesDriver):
    """Drives a bounded Box by the axes of a SpaceMouse, while one of them is moved."""

    def __init__(
        self,
        action_space: gymnasium.Space[Any],
        default_action: Any,
        axes: Sequence[str] = AXES,
        scale: Sequence[float] = (1.0,) * len(AXES),
        dead_zone: float = 0.05,
        give_back_after_s: float = 0.5,
    ) -> None:
        """Set up the driver; a mouse may be plugged in later.

        Args:
            action_space: the environment's action space.
            default_action: sent while it drives and no axis is moved.
            axes: the mouse's axis for each component of the action: x to the right, y ahead, z up,
                and roll, pitch and yaw around them.
            scale: factor of each axis; -1 reverses it.
            dead_zone: an axis deflected by no more than this counts as not moved; 1 is full
                deflection.
            give_back_after_s: seconds with nothing moved until it gives back.

        Raises:
            ConfigError: actions are no bounded Box, there is no such axis, or there are fewer
                scales than axes.
            MissingExtraError: pyspacemouse is not installed.
        """
        for axis in axes:
            expect(axis in AXES, "axes", list(axes), f"some of {', '.join(AXES)}")
        super().__init__(action_space, default_action, axes, scale, dead_zone, give_back_after_s)
        try:
            import pyspacemouse
        except ImportError:
            raise MissingExtraError(
                "a SpaceMouse to drive with needs pyspacemouse: pip install 'tmrl_like[spacemouse]'"
            ) from None
        self._library = pyspacemouse
        self._mouse: Any = None

    def __call__(self, obs: Any) -> Any:
        """Return the action of the axes, or None if nobody moves them. Raise EnvironmentAwayError
        if there is no SpaceMouse.
        """
        state = self._look()
        return self.drive([getattr(state, axis) for axis in self._axes])

    def _look(self) -> Any:
        """Return the newest state that the mouse has sent."""
        try:
            if self._mouse is None:
                convention = self._library.AxisConvention.HID_Z_UP
                self._mouse = self._library.open(axis_convention=convention)
            state = self._mouse.read()
            for _ in range(_MOST_REPORTS):
                before = state.t
                state = self._mouse.read()
                if state.t == before:
                    break
        except (RuntimeError, OSError) as error:
            # raised by the library, and by the one with which it reads devices
            self.close()
            raise EnvironmentAwayError(f"there is no SpaceMouse: plug one in ({error})") from None
        return state

    def close(self) -> None:
        """Close the mouse. Calling it twice is fine."""
        mouse, self._mouse = self._mouse, None
        if mouse is not None:
            mouse.close()
