"""The import path that experiments of version 0.1 have; see `tmrl_like.envs.robot.physics`."""

from tmrl_like.envs.robot.physics import ArmOptions

__all__ = ["ArmOptions"]
