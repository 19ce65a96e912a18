"""The import path that experiments of version 0.1 have; see `tmrl_like.envs.doom.env`."""

from tmrl_like.envs.doom.env import VizDoomEnv, VizDoomInterface

__all__ = ["VizDoomEnv", "VizDoomInterface"]
