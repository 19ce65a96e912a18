"""The tutorial's drone, and how its observations and samples are prepared."""

from tmrl_like.envs.drone.drone_env import DroneEnv, DroneInterface, MirroredFlights, TargetInView

__all__ = ["DroneEnv", "DroneInterface", "MirroredFlights", "TargetInView"]
