"""The tutorial's drone, and the preprocessors of its observations and samples."""

from tmrl_like.envs.drone.drone_env import DroneEnv, DroneInterface, MirroredFlights, TargetInView

__all__ = ["DroneEnv", "DroneInterface", "MirroredFlights", "TargetInView"]
