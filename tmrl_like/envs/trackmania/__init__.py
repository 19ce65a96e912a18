"""TrackMania 2020, a desktop game."""

from tmrl_like.envs.trackmania.trackmania_env import (
    CarReport,
    RaceReward,
    TrackManiaEnv,
    TrackManiaInterface,
)

__all__ = ["CarReport", "RaceReward", "TrackManiaEnv", "TrackManiaInterface"]
