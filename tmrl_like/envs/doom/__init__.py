"""Doom, played by VizDoom."""

from tmrl_like.envs.doom.doom_env import VizDoomEnv, VizDoomInterface

__all__ = ["VizDoomEnv", "VizDoomInterface"]
