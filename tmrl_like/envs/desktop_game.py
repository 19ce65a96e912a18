"""The import path that experiments of version 0.1 have; see `tmrl_like.envs.desktop.env`."""

from tmrl_like.envs.desktop.env import DesktopGameEnv, DesktopGameInterface

__all__ = ["DesktopGameEnv", "DesktopGameInterface"]
