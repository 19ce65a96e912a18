"""A racing game: `env` has the task, `game` the game, `view` what is seen of it, `drivers` who records a lap."""

from tmrl_like.envs.racing.env import MirroredLaps, RacingEnv, RacingInterface, demonstration

__all__ = ["MirroredLaps", "RacingEnv", "RacingInterface", "demonstration"]
