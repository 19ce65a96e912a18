"""TrackMania 2020, a desktop game."""

from tmrl_like.envs.trackmania.trackmania_env import CarReport, TrackManiaEnv, TrackManiaInterface, get_environment

__all__ = ["CarReport", "TrackManiaEnv", "TrackManiaInterface", "get_environment"]
