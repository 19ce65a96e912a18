"""A racing game: `env` has the task, `game` the game, `view` what is seen of it, `drivers` who records a lap."""

from tmrl_like.envs.racing.racing_env import MirroredLaps, RacingEnv, RacingInterface, RoadDriver, demonstration

__all__ = ["MirroredLaps", "RacingEnv", "RacingInterface", "RoadDriver", "demonstration"]
