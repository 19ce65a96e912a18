"""TrackMania 2020, a desktop game."""

from tmrl_like.envs.trackmania.env import Car, TrackManiaEnv, TrackManiaInterface, get_environment

__all__ = ["Car", "TrackManiaEnv", "TrackManiaInterface", "get_environment"]
