"""A robot arm: `robot_env` has the task, `driver` the interface to the robot, and `physics` a
simulated arm.
"""

from tmrl_like.envs.robot.driver import RobotCommand, RobotDriver, RobotState, SimulatedArm
from tmrl_like.envs.robot.robot_env import (
    OtherTargets,
    RobotEnv,
    RobotInterface,
    TargetUpClose,
    tip_m,
)

__all__ = [
    "OtherTargets",
    "RobotCommand",
    "RobotDriver",
    "RobotEnv",
    "RobotInterface",
    "RobotState",
    "SimulatedArm",
    "TargetUpClose",
    "tip_m",
]
