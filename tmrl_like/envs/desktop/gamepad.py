"""A virtual gamepad with analogue axes and buttons."""

from __future__ import annotations

import time
from typing import Any, Protocol

from tmrl_like.envs.keyboards import TAP_S
from tmrl_like.errors import ConfigError, MissingExtraError


class VirtualGamepad(Protocol):
    """A gamepad that steers a game; in tests, write your own."""

    def move(
        self,
        left_stick: tuple[float, float] = (0.0, 0.0),
        left_trigger: float = 0.0,
        right_trigger: float = 0.0,
    ) -> None:
        """Set the axes: the stick's x and y in [-1, 1], the triggers in [0, 1]. Axes that are not
        given are released.
        """
        ...

    def tap(self, button: str, seconds: float = TAP_S) -> None:
        """Press a button, "a", "b", "x", "y", "start" or "back", and release it after `seconds`."""
        ...

    def close(self) -> None:
        """Release everything and unplug the gamepad. Calling it twice is fine."""
        ...


class XboxGamepad:
    """A virtual Xbox 360 gamepad (vgamepad): Windows with the ViGEm bus driver, or Linux with
    /dev/uinput.
    """

    def __init__(self) -> None:
        """Plug in the gamepad. Start the game afterwards, unless it looks for gamepads while it
        runs.

        Raises:
            ConfigError: this machine cannot simulate a gamepad.
            MissingExtraError: vgamepad is not installed.
        """
        try:
            import vgamepad

            self._pad: Any = vgamepad.VX360Gamepad()
        except Exception as error:
            # libevdev and ViGEm raise errors of their own, also during the import
            if isinstance(error, ImportError) and error.name == "vgamepad":
                raise MissingExtraError(
                    "a gamepad needs vgamepad: pip install 'tmrl_like[gamepad]'"
                ) from None
            raise ConfigError(
                f"there can be no virtual gamepad here ({error}): use the keyboard, or see the "
                "guide on gamepads"
            ) from None
        self._buttons = {
            name: vgamepad.XUSB_BUTTON[f"XUSB_GAMEPAD_{name.upper()}"] for name in _BUTTONS
        }

    def move(
        self,
        left_stick: tuple[float, float] = (0.0, 0.0),
        left_trigger: float = 0.0,
        right_trigger: float = 0.0,
    ) -> None:
        self._pad.left_joystick_float(x_value_float=left_stick[0], y_value_float=left_stick[1])
        self._pad.left_trigger_float(value_float=left_trigger)
        self._pad.right_trigger_float(value_float=right_trigger)
        self._pad.update()

    def tap(self, button: str, seconds: float = TAP_S) -> None:
        self._pad.press_button(button=self._buttons[button])
        self._pad.update()
        try:
            time.sleep(seconds)
        finally:
            self._pad.release_button(button=self._buttons[button])
            self._pad.update()

    def close(self) -> None:
        if self._pad is not None:
            self._pad.reset()
            self._pad.update()
            self._pad = None  # the last reference unplugs it


_BUTTONS = ("a", "b", "x", "y", "start", "back")
