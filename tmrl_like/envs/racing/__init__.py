"""A racing game: `racing_env` has the task, `racing_game` the game, and `view` what an agent sees.

`road_driver` is a program that drives; `mirrored_laps` makes two laps of one.
"""

from tmrl_like.envs.racing.mirrored_laps import MirroredLaps
from tmrl_like.envs.racing.racing_env import RacingEnv, RacingInterface, demonstration
from tmrl_like.envs.racing.road_driver import RoadDriver

__all__ = ["MirroredLaps", "RacingEnv", "RacingInterface", "RoadDriver", "demonstration"]
