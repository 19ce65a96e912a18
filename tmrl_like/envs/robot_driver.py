"""The import path that experiments of version 0.1 have; see `tmrl_like.envs.robot.driver`."""

from tmrl_like.envs.robot.driver import RobotCommand, RobotDriver, RobotState, SimulatedArm

__all__ = ["RobotCommand", "RobotDriver", "RobotState", "SimulatedArm"]
