"""Any desktop game: its window, the screen, keys, a gamepad, telemetry and its process;
`desktop_env` puts them together.
"""

from tmrl_like.envs.desktop.desktop_env import DesktopGameEnv, DesktopGameInterface

__all__ = ["DesktopGameEnv", "DesktopGameInterface"]
